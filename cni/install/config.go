package install

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"
)

// Mode is how the plugin comes into the node's CNI configuration.
type Mode string

// The modes.
const (
	// Chained puts it at the end of the primary plugin's list.
	Chained Mode = "chained"
	// Standalone writes a configuration of its own, for meta plugins that name it (Multus).
	Standalone Mode = "standalone"
	// DropIn writes a file into the primary network's folder, which container runtimes with libcni 1.3 or newer read; the
	// primary's own file is not touched. That the runtime does so cannot be seen from here.
	DropIn Mode = "drop-in"
)

// Config is what an Installer needs. Paths are those of this process, where nothing else is said.
type Config struct {
	// Binary is the plugin to install and Tombstone what takes its place when it is uninstalled while sandboxes still
	// name it; BinDirs are where container runtimes look for plugins. Without a Binary none is installed.
	Binary, Tombstone string
	BinDirs           []string

	ConfDir  string
	ConfName string // of the file to use; "": the one that runtimes take
	Mode     Mode
	// Plugin is the plugin's entry in the configuration; its type is set here.
	Plugin map[string]any

	// Kubeconfig is written where the plugin's entry says that it is; "" for none.
	Kubeconfig     string
	KubeconfigMode fs.FileMode // 0: 0600
	Server         string      // URL of the API server
	TokenFile      string      // of the pod
	// Token gives the plugin's token; nil: that of TokenFile.
	Token func() (string, error)
	// Renewed has something when Token gives another; nil for never.
	Renewed       <-chan struct{}
	CAFile        string
	SkipTLSVerify bool

	// Results is where container runtimes keep what they know of sandboxes; "": /var/lib/cni/results.
	Results string

	// Notes is a folder that the plugin has of its own; "" for none. It goes with the plugin.
	Notes string

	// Tell is called after each attempt, for metrics: with "SUCCESS", or the step that failed; nil for none.
	Tell func(result string)
	// Fought is called when somebody else has changed or taken away a file of the installation; nil for none.
	Fought func(file string)
	Logger *slog.Logger

	// Settle is how long changes of files may come before they are looked at, and Recheck how often everything is looked
	// at whatever is heard; 0: 100 ms and 30 s.
	Settle, Recheck time.Duration

	before func(step, path string) error // of tests
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
		errs = append(errs, fmt.Errorf("mode %q is not known: chained, standalone and drop-in are", c.Mode))
	}
	if c.ConfDir == "" {
		errs = append(errs, errors.New("the folder of the node's CNI configuration is not named (mounted-cni-net-dir)"))
	}
	if c.Binary != "" && len(c.BinDirs) == 0 {
		errs = append(errs, errors.New("no folder for the plugin's binary is named (mounted-cni-bin-dir)"))
	}
	if c.ConfName != "" && c.ConfName != filepath.Base(c.ConfName) {
		errs = append(errs, fmt.Errorf("the name of the CNI configuration %q is a path: give the name of a file in %s", c.ConfName, c.ConfDir))
	}
	if c.KubeconfigMode == 0 {
		c.KubeconfigMode = 0o600
	}
	if c.KubeconfigMode&0o600 != 0o600 || c.KubeconfigMode&^0o755 != 0 {
		errs = append(errs, fmt.Errorf("the kubeconfig's mode is %#o: its owner has to read and write it, and nobody else may write it: give 0600, with the 0 (kubeconfig-mode)",
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
