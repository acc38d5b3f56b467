package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/cni/tombstone"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// maxTries limits the attempts to edit a configuration that another program is writing.
const maxTries = 10

// Uninstall removes the plugin's entry from the CNI configuration, so that new pods do not use it, then the kubeconfig,
// then the binary. Sandboxes that reference the plugin still need a binary for DEL. For these, Uninstall replaces the
// binary with the tombstone, which removes itself when the last of them is deleted. If a step fails, the remaining
// files are consistent, and Install can repair the installation.
func (in *Installer) Uninstall() error {
	in.mu.Lock()
	in.condition = health.Condition{Reason: "the CNI plugin is being uninstalled"}
	in.mu.Unlock()
	if err := in.sweep(); err != nil {
		return err
	}
	err := in.restoreConfig()
	for tries := 1; errors.Is(err, errChanged) && tries < maxTries; tries++ {
		err = in.restoreConfig() // the next attempt reads the version of the other program
	}
	if err != nil {
		return fmt.Errorf("removing the plugin from the CNI configuration: %w", err)
	}
	if in.config.Kubeconfig != "" {
		if err := in.disk.remove(in.config.Kubeconfig); err != nil {
			return fmt.Errorf("removing the plugin's kubeconfig: %w", err)
		}
	}
	if in.config.Notes != "" {
		if err := os.RemoveAll(in.config.Notes); err != nil {
			return fmt.Errorf("removing the plugin's attachment files: %w", err)
		}
	}
	if err := in.removeBinary(); err != nil {
		return fmt.Errorf("removing the plugin's binary: %w", err)
	}
	return nil
}

// restoreConfig restores the original CNI configuration from the undo log. If another program has changed a file since,
// it only removes the plugin's entry from it.
func (in *Installer) restoreConfig() error {
	dir := in.config.ConfDir
	log, err := readUndoLog(dir)
	if err != nil {
		in.config.Logger.Warn("cannot read the undo log; the plugin's entry is removed from the current CNI configuration", "error", err)
		log = &undoLog{}
	}
	for i := len(log.Entries) - 1; i >= 0; i-- {
		if err := in.restore(log, log.Entries[i]); err != nil {
			return err
		}
	}
	if err := in.removeFromConfigs(); err != nil {
		return err
	}
	return in.disk.remove(filepath.Join(dir, undoLogName))
}

// restore restores the original state of one file, if the installer was the last program that changed it.
func (in *Installer) restore(log *undoLog, e undoEntry) error {
	path := filepath.Join(in.config.ConfDir, e.File)
	now, err := read(path, maxConf)
	if err != nil {
		return err
	}
	ours := log.wrote(in.config.ConfDir, path, now)
	if ours && e.Was != nil {
		return in.disk.replace(resolveSymlink(path), bytes.NewReader(e.Was), fs.FileMode(e.Mode), func() error { return checkUnchanged(path, now.content) })
	}
	if ours {
		if err := in.disk.remove(path); err != nil {
			return err
		}
	}
	if filepath.Base(path) == dropInName {
		return in.removeEmpty(filepath.Dir(path))
	}
	return nil
}

// removeEmpty removes the drop-in directory of a network if it is empty.
func (in *Installer) removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return in.disk.remove(dir)
}

// removeFromConfigs removes the plugin's entry and drop-in file from all configurations that still have them.
func (in *Installer) removeFromConfigs() error {
	all, _, err := networks(in.config.ConfDir)
	if err != nil {
		return err
	}
	for _, n := range all {
		if n.pluginEntry() != nil {
			if err := in.removeFromConfig(n); err != nil {
				return err
			}
		}
		path := filepath.Join(in.config.ConfDir, n.name(), dropInName)
		if is, err := read(path, maxConf); err == nil && is.exists {
			if err := errors.Join(in.disk.remove(path), in.removeEmpty(filepath.Dir(path))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (in *Installer) removeFromConfig(n *network) error {
	if len(n.types()) == 0 {
		return in.disk.remove(n.path)
	}
	text, err := n.removePlugin()
	if err != nil {
		return err
	}
	return in.disk.replace(resolveSymlink(n.path), bytes.NewReader(text), modeOf(n.path), n.checkUnchanged)
}

// removeBinary removes the plugin's binary, or replaces it with the tombstone while sandboxes reference the plugin.
func (in *Installer) removeBinary() error {
	if in.config.Binary == "" {
		return nil
	}
	references, err := tombstone.CountReferences(in.config.Results, PluginType, "")
	if err != nil {
		in.config.Logger.Warn("cannot list the sandboxes that reference the CNI plugin; a replacement that handles DEL remains in place of its binary", "error", err)
	}
	referenced := references > 0 || err != nil
	replacement := in.config.Tombstone
	if _, err := os.Stat(replacement); err != nil {
		replacement = ""
	}
	for _, dir := range in.config.BinDirs {
		path := filepath.Join(dir, PluginType)
		switch is, err := os.Stat(path); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case referenced && replacement != "" && is.Mode().IsRegular():
			err = in.copyFile(replacement, path)
			in.config.Logger.Info("sandboxes reference the CNI plugin; a replacement that handles DEL remains in place of its binary until these sandboxes are deleted", "path", path, "sandboxes", references)
			if err != nil {
				return err
			}
		default:
			if err := in.disk.remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyFile replaces the file at path with an executable copy of from.
func (in *Installer) copyFile(from, path string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return in.disk.copy(path, f, 0o755)
}
