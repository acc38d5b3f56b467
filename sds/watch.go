package sds

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/pilotfish-mesh/pilotfish/internal/disks"
	"github.com/pilotfish-mesh/pilotfish/internal/filewatch"
)

const (
	defaultDebounce = 100 * time.Millisecond
	// slowPoll is how often files are read although nothing was heard of them, for file systems that may tell nothing;
	// fastPoll while something is wrong with them, since the event that mends it may have come too early. It doubles up to
	// slowPoll.
	slowPoll = time.Minute
	fastPoll = time.Second
	// quietPoll is slowPoll where every file system is one that tells: a directory further up may be moved as a whole there.
	quietPoll = 5 * time.Minute
	// quietPart of the debounce time without another event is enough: files that are replaced by renaming are complete, and
	// who writes a file in place hardly pauses for longer.
	quietPart = 5
)

// watch calls a function whenever files may have changed. It watches directories, because files are replaced by
// renaming, and those that Kubernetes mounts by renaming a link beside them. While there are no files it costs nothing.
type watch struct {
	debounce time.Duration
	clock    Clock
	log      *slog.Logger
	failed   func() // counts failures of the notification system
	// paths gives the files to watch now; check reads them and says whether all is well.
	paths func() []string
	check func() (well bool)
	// wake asks for the files to be followed anew: the set of them is another one, or a file system answers again.
	wake chan struct{}
	// disks are asked about the files.
	disks *disks.Disks

	notifier *filewatch.Watcher     // nil while there are no files, or when it cannot be had
	mute     bool                   // it cannot be had
	stands   bool                   // it waits for a file system, which keeps it
	spots    map[spot]bool          // what is waited for
	watched  map[string]fs.FileInfo // directories, by the names that they had
}

func (w *watch) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watch) run(ctx context.Context) {
	defer w.close()
	for unwell := fastPoll; ctx.Err() == nil; {
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
		w.follow(paths)
		wait := w.poll()
		switch {
		case !w.check():
			wait, unwell = unwell, min(2*unwell, slowPoll)
		case w.mute:
			wait = fastPoll
		default:
			unwell = fastPoll
		}
		if w.await(ctx, wait) {
			unwell = fastPoll
		}
	}
}

// poll is how often files are read although nothing is heard.
func (w *watch) poll() time.Duration {
	for dir := range w.watched {
		var heard bool
		if w.disks.Ask(dir, func() { heard = tells(dir) }) != nil || !heard {
			return slowPoll
		}
	}
	return quietPoll
}

func (w *watch) close() {
	if w.notifier != nil {
		_ = w.notifier.Close()
	}
	w.notifier, w.spots, w.watched = nil, nil, nil
}

func (w *watch) open() {
	w.spots, w.watched = make(map[spot]bool), make(map[string]fs.FileInfo)
	if w.mute {
		return
	}
	notifier, err := filewatch.New()
	if err != nil {
		w.log.Warn("file changes are not notified; files are read every second instead", "error", err)
		w.failed()
		w.mute = true
		return
	}
	w.notifier = notifier
}

// await waits for a reason to check, and then until the dust has settled. It says whether something was heard.
func (w *watch) await(ctx context.Context, wait time.Duration) (heard bool) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w.notifier != nil {
		events, errs = w.notifier.Events, w.notifier.Failures
	}
	timeout := w.clock.After(wait)
	for {
		select {
		case <-timeout:
			return false
		case <-w.wake:
			w.restore()
			if w.follow(w.paths()) {
				return true
			}
		case <-ctx.Done():
			return false
		case err := <-errs:
			w.log.Warn("watching files", "error", err)
			w.failed()
			return true
		case event := <-events:
			if w.concerns(event) {
				w.settle(ctx, events)
				return true
			}
		}
	}
}

// settle waits until nothing has been heard for a moment, for the debounce time at most.
func (w *watch) settle(ctx context.Context, events <-chan fsnotify.Event) {
	end := w.clock.After(w.debounce)
	for {
		quiet := time.NewTimer(w.debounce / quietPart)
		select {
		case event := <-events:
			quiet.Stop()
			w.concerns(event)
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

// concerns says whether an event is about one of the files, or about a directory or link on the way to one.
func (w *watch) concerns(event fsnotify.Event) bool {
	if w.watched[event.Name] != nil {
		if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
			_ = w.notifier.Remove(event.Name)
			delete(w.watched, event.Name)
		}
		return true
	}
	return w.spots[spotOf(event.Name)]
}

// add watches a directory, and says whether it was not watched before: another one has its name since one above it was
// moved, or since something was mounted over it.
func (w *watch) add(dir string) bool {
	var is fs.FileInfo // nil where there is none: it may have gone this moment, and is found anew then
	if w.notifier == nil || w.disks.Ask(dir, func() { is, _ = os.Stat(dir) }) != nil || is == nil {
		return false
	}
	was := w.watched[dir]
	if was != nil && os.SameFile(was, is) {
		return false
	}
	if was != nil {
		_ = w.notifier.Remove(dir)
		delete(w.watched, dir)
	}
	notifier := w.notifier
	var err error
	if w.disks.Ask(dir, func() { err = notifier.Add(dir) }) != nil {
		w.abandon()
		return false
	}
	if err != nil {
		return false
	}
	w.watched[dir] = is
	return true
}

// abandon does without the notifier, which waits for a file system and lets nobody else use it meanwhile.
func (w *watch) abandon() {
	go func(notifier *filewatch.Watcher) { _ = notifier.Close() }(w.notifier)
	w.notifier, w.mute, w.stands = nil, true, true
}

// restore tries a notifier again, after one that was abandoned: a file system may answer again.
func (w *watch) restore() {
	if w.stands {
		w.mute, w.stands, w.watched = false, false, nil
	}
}

// follow brings the watched directories in line with the paths, and says whether there are new ones: what happened in
// those before was not heard.
func (w *watch) follow(paths []string) (more bool) {
	if w.watched == nil {
		w.open()
	}
	if w.notifier == nil {
		return len(paths) > 0
	}
	spots, wanted := make(map[spot]bool), make(map[string]bool)
	for _, s := range w.look(paths) {
		spots[s], wanted[s.dir] = true, true
	}
	w.spots = spots
	for dir := range wanted {
		if w.add(dir) {
			more = true
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
	return more
}

// look finds the places that decide what the paths lead to, but for those that cannot be told at present.
func (w *watch) look(paths []string) []spot {
	var all []spot
	for dir, group := range byDirectory(paths) {
		var spots []spot
		if w.disks.Ask(dir, func() {
			for _, path := range group {
				spots = append(spots, spotsOf(path)...)
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
