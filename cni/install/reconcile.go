package install

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/pilotfish-mesh/pilotfish/internal/filewatch"
)

// Run installs the plugin, and installs it again when a file changes, until the context is canceled. It also checks the
// files periodically, because notifications can be lost, for example when a file system is mounted over a watched
// directory. It does not uninstall.
func (in *Installer) Run(ctx context.Context) error {
	installed := false // whether this process has installed the plugin completely at least once
	for {
		if err := in.installAndWait(ctx, &installed); err != nil {
			return err
		}
	}
}

// installAndWait calls Install once, and waits until the next call is due. Each call has watches of its own, because a
// watched directory may be replaced: then a reused watch could miss changes of the new directory.
func (in *Installer) installAndWait(ctx context.Context, installed *bool) error {
	watch := in.newWatch()
	defer watch.close()
	wait := in.round(*installed)
	*installed = *installed || in.Health().OK
	if wait > 0 {
		return in.waitOut(ctx, wait)
	}
	return watch.next(ctx)
}

// round calls Install once. It returns the minimum delay before the next round; 0 means to wait for the next file
// change or periodic check.
func (in *Installer) round(installed bool) time.Duration {
	in.absent, in.undone = false, ""
	changed, err := in.Install()
	switch {
	case errors.Is(err, errChanged):
		in.config.Logger.Info("another program is changing the CNI configuration; trying again", "error", err)
		return in.config.Settle
	case err != nil:
		pause := in.recordFailure(changed && !isPartial(err))
		in.config.Logger.Warn("the CNI plugin is not installed completely; new pods of the mesh may fail to start, or start without redirection", "error", err)
		return pause
	}
	in.failures = 0
	switch {
	case !changed:
		return 0
	case !installed || in.undone == "":
		in.config.Logger.Info("the CNI plugin is installed", "directory", in.config.ConfDir)
		return 0
	}
	path := in.undone
	if in.config.OnConflict != nil {
		in.config.OnConflict(filepath.Base(path))
	}
	now := time.Now()
	conflict, wait := in.fights.round(now, in.absent)
	if !conflict {
		in.config.Logger.Info("another program changed the installed files; the node agent restored them", "file", path, "pluginRemoved", in.absent)
		return 0
	}
	if !in.fights.shouldLog(now) {
		return wait
	}
	text := "another program repeatedly removes the CNI plugin from the configuration; until each repair, new pods start without redirection"
	if !in.absent {
		text = "another program repeatedly changes the installed files"
	}
	in.config.Logger.Warn(text, "file", path, "repairs", len(in.fights.rounds), "within", conflictWindow, "nextRepairIn", wait, "likelyProgram", in.describeOpponent(path))
	return wait
}

// recordFailure records a failure and returns the delay before the next round. After a failure, the changes are
// reverted, which causes notifications. Without a delay, the next round would start immediately and copy the plugin's
// binary again.
func (in *Installer) recordFailure(rolledBack bool) time.Duration {
	if !rolledBack {
		in.failures = 0
		return 0
	}
	in.failures++
	return min(time.Second<<min(in.failures-1, 10), maxBackoff)
}

func (in *Installer) describeOpponent(path string) string {
	if filepath.Dir(path) != filepath.Clean(in.config.ConfDir) {
		return "another node agent that uses the same directory, such as Istio's: remove it, or set cni-agent-run-dir of this agent to another directory"
	}
	n, _ := primary(in.config.ConfDir, in.config.ConfName)
	return describeOpponent(n)
}

// waitOut waits during a conflict or after a failure. It returns early if another program removes the plugin from the
// CNI configuration. After a failure it also returns early when the credentials are renewed.
func (in *Installer) waitOut(ctx context.Context, wait time.Duration) error {
	over := time.NewTimer(wait)
	defer over.Stop()
	look := time.NewTicker(in.config.Settle)
	defer look.Stop()
	var renewed <-chan struct{}
	if in.failures > 0 {
		renewed = in.config.Renewed
	}
	for absent := in.absent || in.failures > 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return nil
		case <-renewed:
			return nil
		case <-look.C:
			if !absent && in.isPluginMissing() {
				return nil
			}
		}
	}
}

// isPluginMissing reports whether the configuration that runtimes use does not contain the plugin.
func (in *Installer) isPluginMissing() bool {
	if in.config.Mode == Standalone {
		return false
	}
	n, err := primary(in.config.ConfDir, in.config.ConfName)
	if err != nil || n.pluginEntry() != nil {
		return false
	}
	if in.config.Mode == Chained {
		return true
	}
	_, err = os.Stat(filepath.Join(in.config.ConfDir, n.name(), dropInName))
	return errors.Is(err, fs.ErrNotExist)
}

// watch waits for changes of the installed files and their directories.
type watch struct {
	in     *Installer
	notify *filewatch.Watcher // nil if inotify is not available; only the periodic checks remain
}

func (in *Installer) newWatch() *watch {
	w := &watch{in: in}
	var err error
	if w.notify, err = filewatch.New(); err != nil {
		w.notify = nil
		if in.warnedOfWatch {
			return w
		}
		in.warnedOfWatch = true
		in.config.Logger.Warn("cannot watch the CNI configuration for changes; it is checked only periodically", "interval", in.config.Recheck,
			"error", err, "remedy", "raise fs.inotify.max_user_instances")
		return w
	}
	w.addDirectories()
	return w
}

// addDirectories watches the directories that exist now.
func (w *watch) addDirectories() {
	c := &w.in.config
	dirs := append([]string{c.ConfDir}, c.BinDirs...)
	if c.Kubeconfig != "" {
		w.createAndAdd(filepath.Dir(c.Kubeconfig))
		dirs = append(dirs, filepath.Dir(c.TokenFile))
	}
	if c.Binary != "" {
		dirs = append(dirs, filepath.Dir(c.Binary))
	}
	if n, err := primary(c.ConfDir, c.ConfName); err == nil && c.Mode == DropIn {
		dirs = append(dirs, filepath.Join(c.ConfDir, n.name()))
	}
	for _, dir := range dirs {
		_ = w.notify.Add(dir) // if this fails, the periodic checks remain
	}
}

// createAndAdd creates a directory, because one that does not exist cannot be watched, and watches it. It tries again if
// another program removes the directory in between.
func (w *watch) createAndAdd(dir string) {
	for range 3 {
		if os.MkdirAll(dir, 0o755) != nil || !errors.Is(w.notify.Add(dir), fs.ErrNotExist) {
			return // after other failures, the periodic checks remain
		}
	}
}

// next waits for a file change and the debounce delay, for renewed credentials, or for the next periodic check.
func (w *watch) next(ctx context.Context) error {
	recheck := time.NewTimer(w.in.config.Recheck)
	defer recheck.Stop()
	var events chan fsnotify.Event
	var errs <-chan error
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Failures
	}
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-recheck.C:
			return nil
		case <-w.in.config.Renewed:
			return nil
		case <-settled:
			return nil
		case e := <-events:
			if !ownStaging(e.Name) && settled == nil {
				settled = time.After(w.in.config.Settle)
			}
		case err := <-errs:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				w.in.config.Logger.Warn("an error occurred while watching the CNI configuration; the configuration is checked again", "error", err)
			}
			return nil
		}
	}
}

// ownStaging reports whether a path is a temporary file or the undo log of the installer. Their changes are ignored.
func ownStaging(path string) bool {
	name := filepath.Base(path)
	return len(name) > len(staging) && name[:len(staging)] == staging || name == undoLogName
}

func (w *watch) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}
