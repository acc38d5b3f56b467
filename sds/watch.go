package sds

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/pilotfish-mesh/pilotfish/internal/filewatch"
	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
)

const (
	defaultDebounce = 100 * time.Millisecond
	// slowPoll is how often files are read without a notification, because some file systems do not send notifications.
	// After a failed check the interval starts at fastPoll and doubles up to slowPoll, because the notification that
	// the file was corrected may have been missed.
	slowPoll = time.Minute
	fastPoll = time.Second
	// localPoll replaces slowPoll if all file systems are local. Polling is still necessary, because inotify does not
	// report that a parent directory was moved.
	localPoll = 5 * time.Minute
	// The debounce ends early if no event arrives for debounce/quietDivisor. A file that was replaced by renaming is
	// already complete, and a process that writes a file in place rarely pauses longer.
	quietDivisor = 5
)

// fileWatcher calls a function when files may have changed. It watches directories, because files are replaced by
// renaming, and Kubernetes updates mounted files by renaming a symbolic link in their directory. It is idle while there
// are no files to watch.
type fileWatcher struct {
	debounce time.Duration
	clock    Clock
	log      *slog.Logger
	failed   func() // counts failures of inotify
	// paths returns the files to watch. check reads them and reports whether all are valid.
	paths func() []string
	check func() (ok bool)
	// wake makes the watcher update its watches: the set of files has changed, or a hung file system responds again.
	wake chan struct{}
	// timeoutFS runs all calls to the file systems.
	timeoutFS *fstimeout.TimeoutFS

	notifier    *filewatch.Watcher     // nil without files, or if unavailable
	unavailable bool                   // creating the notifier failed, or it hangs
	hung        bool                   // the notifier hangs in a call to a file system
	watchPoints map[watchPoint]bool    // names whose events are relevant
	watched     map[string]fs.FileInfo // watched directories by name
}

func (w *fileWatcher) trigger() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *fileWatcher) run(ctx context.Context) {
	defer w.close()
	for retryWait := fastPoll; ctx.Err() == nil; {
		paths := w.paths()
		if len(paths) == 0 {
			w.close()
			select {
			case <-w.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		w.updateWatches(paths)
		wait := w.pollInterval()
		switch {
		case !w.check():
			wait, retryWait = retryWait, min(2*retryWait, slowPoll)
		case w.unavailable:
			wait = fastPoll
		default:
			retryWait = fastPoll
		}
		if w.waitForChange(ctx, wait) {
			retryWait = fastPoll
		}
	}
}

// pollInterval returns how often files are read without a notification.
func (w *fileWatcher) pollInterval() time.Duration {
	for dir := range w.watched {
		var local bool
		if w.timeoutFS.Do(dir, func() { local = isLocalFS(dir) }) != nil || !local {
			return slowPoll
		}
	}
	return localPoll
}

func (w *fileWatcher) close() {
	if w.notifier != nil {
		_ = w.notifier.Close()
	}
	w.notifier, w.watchPoints, w.watched = nil, nil, nil
}

func (w *fileWatcher) openNotifier() {
	w.watchPoints, w.watched = make(map[watchPoint]bool), make(map[string]fs.FileInfo)
	if w.unavailable {
		return
	}
	notifier, err := filewatch.New()
	if err != nil {
		w.log.Warn("cannot watch files for changes; reading them every second instead", "error", err)
		w.failed()
		w.unavailable = true
		return
	}
	w.notifier = notifier
}

// waitForChange waits up to maxWait for an event or a wake-up. After an event it waits until the burst of events ends.
// It reports whether files may have changed.
func (w *fileWatcher) waitForChange(ctx context.Context, maxWait time.Duration) (notified bool) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w.notifier != nil {
		events, errs = w.notifier.Events, w.notifier.Failures
	}
	timeout := w.clock.NewTimer(maxWait)
	for {
		select {
		case <-timeout:
			return false
		case <-w.wake:
			w.retryNotifier()
			if w.updateWatches(w.paths()) {
				return true
			}
		case <-ctx.Done():
			return false
		case err := <-errs:
			w.log.Warn("an error occurred while watching certificate files; the files are read again", "error", err)
			w.failed()
			return true
		case event := <-events:
			if w.handleEvent(event) {
				w.waitQuiet(ctx, events)
				return true
			}
		}
	}
}

// waitQuiet waits until no event arrives for debounce/quietDivisor, or until the debounce time has elapsed.
func (w *fileWatcher) waitQuiet(ctx context.Context, events <-chan fsnotify.Event) {
	end := w.clock.NewTimer(w.debounce)
	for {
		quiet := time.NewTimer(w.debounce / quietDivisor)
		select {
		case event := <-events:
			quiet.Stop()
			w.handleEvent(event)
		case <-quiet.C:
			return
		case <-end:
			quiet.Stop()
			return
		case <-ctx.Done():
			quiet.Stop()
			return
		}
	}
}

// handleEvent reports whether an event concerns one of the files, or a directory or symbolic link in their paths. If a
// watched directory was removed or renamed, handleEvent stops watching it.
func (w *fileWatcher) handleEvent(event fsnotify.Event) bool {
	if w.watched[event.Name] != nil {
		if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
			_ = w.notifier.Remove(event.Name)
			delete(w.watched, event.Name)
		}
		return true
	}
	return w.watchPoints[newWatchPoint(event.Name)]
}

// watchDir watches a directory and reports whether it was not watched before. It also replaces the watch if the name
// now refers to another directory, for example after a mount or after a parent was moved.
func (w *fileWatcher) watchDir(dir string) bool {
	var info fs.FileInfo // nil if missing: it may just have been removed, and is then detected later
	if w.notifier == nil || w.timeoutFS.Do(dir, func() { info, _ = os.Stat(dir) }) != nil || info == nil {
		return false
	}
	old := w.watched[dir]
	if old != nil && os.SameFile(old, info) {
		return false
	}
	if old != nil {
		_ = w.notifier.Remove(dir)
		delete(w.watched, dir)
	}
	notifier := w.notifier
	var err error
	if w.timeoutFS.Do(dir, func() { err = notifier.Add(dir) }) != nil {
		w.abandonNotifier()
		return false
	}
	if err != nil {
		return false
	}
	w.watched[dir] = info
	return true
}

// abandonNotifier closes the notifier in the background and stops using it, because it hangs in a call to a file
// system.
func (w *fileWatcher) abandonNotifier() {
	go func(notifier *filewatch.Watcher) { _ = notifier.Close() }(w.notifier)
	w.notifier, w.unavailable, w.hung = nil, true, true
}

// retryNotifier lets updateWatches create a new notifier if the old one hung in a file system, which may respond again.
func (w *fileWatcher) retryNotifier() {
	if w.hung {
		w.unavailable, w.hung, w.watched = false, false, nil
	}
}

// updateWatches watches the directories of the paths' watch points, and stops watching all other directories. It
// returns true if it added a directory, because events there may have been missed. It also returns true if there are
// paths but no notifier.
func (w *fileWatcher) updateWatches(paths []string) (added bool) {
	if w.watched == nil {
		w.openNotifier()
	}
	if w.notifier == nil {
		return len(paths) > 0
	}
	spots, wanted := make(map[watchPoint]bool), make(map[string]bool)
	for _, s := range w.resolvePaths(paths) {
		spots[s], wanted[s.dir] = true, true
	}
	w.watchPoints = spots
	for dir := range wanted {
		if w.watchDir(dir) {
			added = true
		}
	}
	if w.notifier == nil {
		return true
	}
	for dir := range w.watched {
		if !wanted[dir] {
			_ = w.notifier.Remove(dir)
			delete(w.watched, dir)
		}
	}
	return added
}

// resolvePaths returns the watch points of all paths, without those on hung file systems.
func (w *fileWatcher) resolvePaths(paths []string) []watchPoint {
	var all []watchPoint
	for dir, group := range byDirectory(paths) {
		var spots []watchPoint
		if w.timeoutFS.Do(dir, func() {
			for _, path := range group {
				spots = append(spots, findWatchPoints(path)...)
			}
		}) == nil {
			all = append(all, spots...)
		}
	}
	return all
}

func byDirectory(paths []string) map[string][]string {
	groups := make(map[string][]string)
	for _, path := range paths {
		dir := filepath.Dir(path)
		groups[dir] = append(groups[dir], path)
	}
	return groups
}
