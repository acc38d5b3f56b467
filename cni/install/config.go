package install

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"
)

// Mode is the way in which the plugin is added to the node's CNI configuration.
type Mode string

// The values of Mode. The primary network is the one whose CNI configuration the container runtime uses for pods.
const (
	// Chained appends the plugin to the plugin list in the primary network's configuration file.
	Chained Mode = "chained"
	// Standalone writes a separate configuration file, which a meta plugin such as Multus references.
	Standalone Mode = "standalone"
	// DropIn writes a file into the subdirectory that has the primary network's name, and does not change the network's
	// configuration file. Only container runtimes with libcni 1.3 or newer read this directory. The installer cannot
	// check whether the runtime does.
	DropIn Mode = "drop-in"
)

// Config is the configuration of an Installer. Paths are as seen by this process, where the node's directories are
// mounted, unless a field's comment specifies otherwise.
type Config struct {
	// Binary is the path of the plugin's binary; "" to install no binary. Tombstone is the path of the program that
	// replaces the binary after an uninstallation, while sandboxes still reference the plugin. BinDirs are the
	// directories in which container runtimes look for plugins.
	Binary, Tombstone string
	BinDirs           []string

	ConfDir  string // directory of CNI configurations
	ConfName string // name of the configuration file; "" for the file that container runtimes use
	Mode     Mode
	// Plugin is the plugin's entry in the CNI configuration. The installer sets its "type".
	Plugin map[string]any

	// Kubeconfig is the path of the plugin's kubeconfig, which must be the same on the node; "" for none.
	Kubeconfig     string
	KubeconfigMode fs.FileMode // 0 means 0600
	Server         string      // URL of the API server
	TokenFile      string      // the service account token of the agent's pod
	// Token returns the token for the plugin's kubeconfig. If it is nil, the installer uses the content of TokenFile.
	Token func() (string, error)
	// Renewed receives a value when Token has a new token. It may be nil.
	Renewed       <-chan struct{}
	CAFile        string // the API server's CA certificates
	SkipTLSVerify bool   // the plugin does not verify the API server's certificate

	// Results is the directory of libcni's result cache; "" means /var/lib/cni/results.
	Results string

	// Notes is the directory of the plugin's attachment files, which Uninstall removes; "" for none.
	Notes string

	// OnAttempt is called after the first attempt to install, and after each attempt that fails or changes a file. The
	// result is "SUCCESS" or names the step that failed. It may be nil.
	OnAttempt func(result string)
	// OnConflict is called when another program has changed or removed an installed file. It may be nil.
	OnConflict func(file string)
	Logger     *slog.Logger

	// Settle is the delay after a file change, in which further changes are merged; 0 means 100 ms. Recheck is the
	// interval of checks without a notification of a change; 0 means 30 s.
	Settle, Recheck time.Duration

	before func(step, path string) error // lets tests fail a step; nil otherwise
}

const (
	defaultStandalone = "YYY-pilotfish-cni.conf"
	dropInName        = "90-pilotfish-cni.conf"
)

func (c *Config) check() error {
	var errs []error
	switch c.Mode {
	case "":
		c.Mode = Chained
	case Chained, Standalone, DropIn:
	default:
		errs = append(errs, fmt.Errorf("mode %q is unknown: use chained, standalone or drop-in", c.Mode))
	}
	if c.ConfDir == "" {
		errs = append(errs, errors.New("the directory of the node's CNI configuration is not set: set mounted-cni-net-dir"))
	}
	if c.Binary != "" && len(c.BinDirs) == 0 {
		errs = append(errs, errors.New("the directory for the plugin's binary is not set: set mounted-cni-bin-dir"))
	}
	if c.ConfName != "" && c.ConfName != filepath.Base(c.ConfName) {
		errs = append(errs, fmt.Errorf("cni-conf-name %q is a path: use the name of a file in %s", c.ConfName, c.ConfDir))
	}
	if c.KubeconfigMode == 0 {
		c.KubeconfigMode = 0o600
	}
	if c.KubeconfigMode&0o600 != 0o600 || c.KubeconfigMode&^0o755 != 0 {
		errs = append(errs, fmt.Errorf("kubeconfig-mode %#o is invalid: the owner must be able to read and write the file, and other users must not write it: use 0600, with the leading 0",
			uint32(c.KubeconfigMode)))
	}
	if c.Results == "" {
		c.Results = "/var/lib/cni/results"
	}
	if c.Settle == 0 {
		c.Settle = 100 * time.Millisecond
	}
	if c.Recheck == 0 {
		c.Recheck = 30 * time.Second
	}
	return errors.Join(errs...)
}
