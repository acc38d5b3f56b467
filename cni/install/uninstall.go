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

// mostTries is how often a configuration is read anew that another program writes meanwhile.
const mostTries = 10

// Uninstall takes the plugin away: first its place in the configuration, so that no new pod asks for it; then the
// kubeconfig; then the binary. While sandboxes name it, whose end would fail without it, the tombstone takes its place,
// which lets them end and then goes by itself. What fails leaves the rest in a state that works, and can be repeated.
func (in *Installer) Uninstall() error {
	in.mu.Lock()
	in.condition = health.Condition{Reason: "the CNI plugin is being uninstalled"}
	in.mu.Unlock()
	if err := in.sweep(); err != nil {
		return err
	}
	err := in.takeOut()
	for tries := 1; errors.Is(err, errChanged) && tries < mostTries; tries++ {
		err = in.takeOut() // of what is there now
	}
	if err != nil {
		return fmt.Errorf("taking the plugin out of the CNI configuration: %w", err)
	}
	if in.config.Kubeconfig != "" {
		if err := in.disk.remove(in.config.Kubeconfig); err != nil {
			return fmt.Errorf("removing the plugin's kubeconfig: %w", err)
		}
	}
	if in.config.Notes != "" {
		if err := os.RemoveAll(in.config.Notes); err != nil {
			return fmt.Errorf("removing the plugin's notes of sandboxes: %w", err)
		}
	}
	if err := in.bury(); err != nil {
		return fmt.Errorf("removing the plugin's binary: %w", err)
	}
	return nil
}

// takeOut brings back what the configuration was. What somebody has changed since keeps that, less the plugin.
func (in *Installer) takeOut() error {
	dir := in.config.ConfDir
	log, err := readUndoLog(dir)
	if err != nil {
		in.config.Logger.Warn("the CNI configuration is cleaned without its undo log", "error", err)
		log = &undoLog{}
	}
	for i := len(log.Entries) - 1; i >= 0; i-- {
		if err := in.restore(log, log.Entries[i]); err != nil {
			return err
		}
	}
	if err := in.takeOutRest(); err != nil {
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
		return in.disk.replace(behindLink(path), bytes.NewReader(e.Was), fs.FileMode(e.Mode), func() error { return unchanged(path, now.content) })
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

// removeEmpty takes the folder of a network away that nobody else has put anything into.
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

// takeOutRest takes the plugin out of every configuration that still names it.
func (in *Installer) takeOutRest() error {
	all, _, err := networks(in.config.ConfDir)
	if err != nil {
		return err
	}
	for _, n := range all {
		if n.ours() != nil {
			if err := in.takeOutOf(n); err != nil {
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

func (in *Installer) takeOutOf(n *network) error {
	if len(n.types()) == 0 {
		return in.disk.remove(n.path)
	}
	text, err := n.without()
	if err != nil {
		return err
	}
	return in.disk.replace(behindLink(n.path), bytes.NewReader(text), modeOf(n.path), n.unchanged)
}

// bury removes the binary, or leaves the tombstone.
func (in *Installer) bury() error {
	if in.config.Binary == "" {
		return nil
	}
	named, err := tombstone.References(in.config.Results, PluginType, "")
	if err != nil {
		in.config.Logger.Warn("what sandboxes the container runtime knows cannot be seen; the tombstone stays", "error", err)
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
			err = in.place(stone, path)
			in.config.Logger.Info("sandboxes name the CNI plugin: a tombstone stays in its place until they are gone", "path", path, "sandboxes", named)
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

// place copies a file.
func (in *Installer) place(from, path string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return in.disk.copy(path, f, 0o755)
}
