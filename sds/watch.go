package sds

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	defaultDebounce = 100 * time.Millisecond
	// slowPoll is how often files are read although nothing was heard of them, for file systems that tell nothing;
	// fastPoll while something is wrong with them, since the event that mends it may have come too early.
	slowPoll = 30 * time.Second
	fastPoll = time.Second
)

// watch calls a function whenever files may have changed. It watches directories, because files are replaced by
// renaming, and those that Kubernetes mounts by renaming a link beside them.
type watch struct {
	debounce time.Duration
	clock    Clock
	log      *slog.Logger
	failed   func() // counts failures of the notification system
	// paths gives the files to watch now; check reads them and says whether all is well.
	paths func() []string
	check func() (well bool)
	// wake asks for a check soon: the set of files is another one.
	wake chan struct{}
}

func (w *watch) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watch) run(ctx context.Context) {
	notifier, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("file changes are not notified; files are read every second instead", "error", err)
		w.failed()
		w.poll(ctx)
		return
	}
	defer func() { _ = notifier.Close() }()
	watched := make(map[string]bool)
	for {
		complete := w.follow(notifier, watched)
		wait := slowPoll
		if well := w.check(); !well || !complete {
			wait = fastPoll
		}
		if !w.await(ctx, notifier, wait) {
			return
		}
	}
}

func (w *watch) poll(ctx context.Context) {
	for {
		w.check()
		select {
		case <-w.clock.After(fastPoll):
		case <-w.wake:
		case <-ctx.Done():
			return
		}
	}
}

// await waits for a reason to check, and then until the dust has settled; false means that the context has ended.
func (w *watch) await(ctx context.Context, notifier *fsnotify.Watcher, wait time.Duration) bool {
	select {
	case <-w.clock.After(wait):
		return true
	case <-w.wake:
		return true
	case <-ctx.Done():
		return false
	case err := <-notifier.Errors:
		w.log.Warn("watching files", "error", err)
		w.failed()
	case <-notifier.Events:
	}
	settled := w.clock.After(w.debounce)
	for {
		select {
		case <-notifier.Events:
		case <-settled:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// follow brings the watched directories in line with the paths, and says whether all could be watched.
func (w *watch) follow(notifier *fsnotify.Watcher, watched map[string]bool) (complete bool) {
	complete = true
	wanted := make(map[string]bool)
	for _, path := range w.paths() {
		for _, dir := range directories(path) {
			wanted[dir] = true
		}
	}
	for dir := range wanted {
		if watched[dir] {
			continue
		}
		if err := notifier.Add(dir); err != nil {
			complete = false // it may not be there yet
			continue
		}
		watched[dir] = true
	}
	for dir := range watched {
		if !wanted[dir] {
			_ = notifier.Remove(dir)
			delete(watched, dir)
		}
	}
	return complete
}

// directories are the one that the path names, and the one where the file really is.
func directories(path string) []string {
	dirs := []string{filepath.Dir(path)}
	if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs
}
