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

// Uninstall removes the plugin's entry from the configuration, so that no new pod uses it, then the kubeconfig, then
// the binary. While sandboxes reference the plugin, their DEL would fail without it. The tombstone therefore replaces
// the binary until the last of them has ended, and then removes itself. If a step fails, the remaining installation is
// consistent and can be repaired.
func (in *Installer) Uninstall() error {
	in.mu.Lock()
	in.condition = health.Condition{Reason: "the CNI plugin is being uninstalled"}
	in.mu.Unlock()
	if err := in.sweep(); err != nil {
		return err
	}
	err := in.restoreConfig()
	for tries := 1; errors.Is(err, errChanged) && tries < maxTries; tries++ {
		err = in.restoreConfig() // reads the present configuration
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
			return fmt.Errorf("removing the plugin's attachment records: %w", err)
		}
	}
	if err := in.removeBinary(); err != nil {
		return fmt.Errorf("removing the plugin's binary: %w", err)
	}
	return nil
}

// restoreConfig restores the original configuration. From files that another program has changed since, it only removes
// the plugin.
func (in *Installer) restoreConfig() error {
	dir := in.config.ConfDir
	log, err := readUndoLog(dir)
	if err != nil {
		in.config.Logger.Warn("removing the plugin from the CNI configuration without the undo log", "error", err)
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

// removeEmpty removes the directory of a network if it contains no files of other programs.
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

// removeFromConfigs removes the plugin from every configuration that still references it.
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

// removeBinary removes the binary, or replaces it with the tombstone.
func (in *Installer) removeBinary() error {
	if in.config.Binary == "" {
		return nil
	}
	named, err := tombstone.CountReferences(in.config.Results, PluginType, "")
	if err != nil {
		in.config.Logger.Warn("the container runtime's sandboxes cannot be listed; the tombstone remains", "error", err)
	}
	stays := named > 0 || err != nil
	stone := in.config.Tombstone
	if _, err := os.Stat(stone); err != nil {
		stone = ""
	}
	for _, dir := range in.config.BinDirs {
		path := filepath.Join(dir, PluginType)
		switch is, err := os.Stat(path); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case stays && stone != "" && is.Mode().IsRegular():
			err = in.copyFile(stone, path)
			in.config.Logger.Info("sandboxes reference the CNI plugin: a tombstone replaces it until they are removed", "path", path, "sandboxes", named)
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

// copyFile copies a file.
func (in *Installer) copyFile(from, path string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return in.disk.copy(path, f, 0o755)
}
