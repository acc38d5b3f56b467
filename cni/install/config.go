package install

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"
)

// Mode is how the plugin is added to the node's CNI configuration.
type Mode string

// The modes.
const (
	// Chained appends the plugin to the primary network's plugin list.
	Chained Mode = "chained"
	// Standalone writes a separate configuration, which a meta plugin such as Multus references.
	Standalone Mode = "standalone"
	// DropIn writes a file into the primary network's directory, which container runtimes with libcni 1.3 or newer
	// read. The primary network's own file is not changed. The installer cannot check whether the runtime reads the
	// directory.
	DropIn Mode = "drop-in"
)

// Config is the configuration of an Installer. Paths are paths of this process unless a field's comment specifies
// otherwise.
type Config struct {
	// Binary is the plugin to install. Tombstone is the program that replaces it on uninstall while sandboxes still
	// reference the plugin. BinDirs are the directories in which container runtimes look for plugins. If Binary is
	// empty, no binary is installed.
	Binary, Tombstone string
	BinDirs           []string

	ConfDir  string
	ConfName string // file name; "" selects the file that container runtimes use
	Mode     Mode
	// Plugin is the plugin's entry in the configuration; the installer sets its type.
	Plugin map[string]any

	// Kubeconfig is the path at which the kubeconfig is written, as referenced by the plugin's entry; "" for none.
	Kubeconfig     string
	KubeconfigMode fs.FileMode // 0: 0600
	Server         string      // URL of the API server
	TokenFile      string      // the pod's token file
	// Token returns the plugin's token; nil uses the content of TokenFile.
	Token func() (string, error)
	// Renewed receives a value when Token returns a new token; nil for never.
	Renewed       <-chan struct{}
	CAFile        string
	SkipTLSVerify bool

	// Results is the directory of libcni's result cache; "": /var/lib/cni/results.
	Results string

	// Notes is a directory that only the plugin uses; "" for none. Uninstall removes it.
	Notes string

	// OnAttempt is called for metrics after the first attempt and each one that failed or changed a file, with "SUCCESS" or
	// the step that failed; nil for none.
	OnAttempt func(result string)
	// OnConflict is called when another program changed or removed a file of the installation; nil for none.
	OnConflict func(file string)
	Logger     *slog.Logger

	// Settle is the debounce after a file change. Recheck is the interval of full checks, regardless of notifications.
	// 0: 100 ms and 30 s.
	Settle, Recheck time.Duration

	before func(step, path string) error // for tests
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
		errs = append(errs, errors.New("the directory of the node's CNI configuration is not set (mounted-cni-net-dir)"))
	}
	if c.Binary != "" && len(c.BinDirs) == 0 {
		errs = append(errs, errors.New("the directory for the plugin's binary is not set (mounted-cni-bin-dir)"))
	}
	if c.ConfName != "" && c.ConfName != filepath.Base(c.ConfName) {
		errs = append(errs, fmt.Errorf("the name of the CNI configuration %q is a path: use the name of a file in %s", c.ConfName, c.ConfDir))
	}
	if c.KubeconfigMode == 0 {
		c.KubeconfigMode = 0o600
	}
	if c.KubeconfigMode&0o600 != 0o600 || c.KubeconfigMode&^0o755 != 0 {
		errs = append(errs, fmt.Errorf("the kubeconfig's mode is %#o: only its owner may write it, and the owner must be able to read it: use 0600, with the leading 0 (kubeconfig-mode)",
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
