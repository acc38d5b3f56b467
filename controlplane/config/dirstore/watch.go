package dirstore

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/pilotfish-mesh/pilotfish/internal/filewatch"
)

// maxUnwatchedScans limits the consecutive scans that unwatched directories cause. Otherwise a directory that cannot be
// watched would cause endless scans.
const maxUnwatchedScans = 3

// dirWatcher scans all files when the system reports a change, and periodically. Only changed files are read. It
// watches the configured directories, the directories below them, and the parents of the configured paths. This detects
// an editor's rename and the replacement of a Kubernetes volume, whose files are links through "..data". The periodic
// scan finds other changes: mounts, and changes of links' targets outside the directories.
type dirWatcher struct {
	store          *Store
	watcher        *filewatch.Watcher
	rescanInterval time.Duration
	dirs           map[string]fs.FileInfo // directories watched at the last scan
	// touched are files with events since the last scan. They are read even if they look unchanged, because the
	// kernel's clock for file times is coarse.
	touched        map[string]bool
	unwatchedScans int // number of consecutive scans that found unwatched directories
	timer          *time.Timer
}

// scan watches and scans the directories, and sets the timer of the next scan.
func (f *dirWatcher) scan() {
	// Watch first, then scan: changes before the watch are found by the scan, and later changes produce events.
	found := listPaths(f.store.cfg.Paths)
	unwatched := f.watchDirs(found.dirs)
	if unwatched {
		found = listPaths(f.store.cfg.Paths)
	}
	if f.unwatchedScans++; !unwatched {
		f.unwatchedScans = 0
	}
	again := f.store.scanListing(found, f.touched)
	f.touched = map[string]bool{}
	switch {
	// An event of a replaced directory may end the watch of its replacement.
	case again, unwatched && f.unwatchedScans <= maxUnwatchedScans:
		f.timer.Reset(removalGrace)
	case found.err != nil:
		f.timer.Reset(min(f.rescanInterval, rescanUnwatched))
	default:
		f.timer.Reset(f.rescanInterval)
	}
}

// watchDirs watches dirs and the parents of the configured paths. unwatched is true if any directory was not watched
// during the whole time since the last scan, so that its changes may have been missed.
func (f *dirWatcher) watchDirs(dirs []foundDir) (unwatched bool) {
	before, watched := f.dirs, map[string]bool{}
	for _, dir := range f.watcher.WatchList() { // without removed directories
		watched[dir] = true
	}
	unwatched = before == nil
	f.dirs = make(map[string]fs.FileInfo, len(dirs))
	for _, dir := range dirs {
		if known := before[dir.path]; known == nil || !watched[dir.path] || !os.SameFile(known, dir.info) {
			unwatched = true
		}
		f.dirs[dir.path] = dir.info
		if err := f.watcher.Add(dir.path); err != nil {
			f.store.log.Debug("cannot watch a directory for changes; scanning it periodically", "directory", dir.path, "error", err)
			f.rescanInterval = min(f.rescanInterval, rescanUnwatched)
			unwatched = true
		}
	}
	for _, root := range f.store.cfg.Paths {
		// Events in the parent report that a configured directory or file was replaced.
		parent := filepath.Dir(filepath.Clean(root))
		unwatched = unwatched || !watched[parent]
		_ = f.watcher.Add(parent)
	}
	return unwatched
}

// isRelevant reports whether event may concern a file that the store reads.
func (f *dirWatcher) isRelevant(event fsnotify.Event) bool {
	name := filepath.Base(event.Name)
	if strings.HasPrefix(name, "..") { // Kubernetes replaces the files of a volume by renaming "..data"
		return true
	}
	if isEditorFile(name) {
		return false
	}
	return slices.ContainsFunc(f.store.cfg.Paths, func(root string) bool {
		root = filepath.Clean(root)
		return isWithin(root, event.Name) || isWithin(event.Name, root)
	})
}

func isWithin(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// collectEvents records events, beginning with first, until the files have not changed for the time debounce. It stops
// after maxDebounce.
func (f *dirWatcher) collectEvents(ctx context.Context, first fsnotify.Event) {
	f.touched[filepath.Clean(first.Name)] = true
	maxDelay := time.NewTimer(maxDebounce)
	defer maxDelay.Stop()
	quiet := time.NewTimer(debounce)
	defer quiet.Stop()
	for {
		select {
		case event := <-f.watcher.Events:
			if f.isRelevant(event) {
				f.touched[filepath.Clean(event.Name)] = true
				quiet.Reset(debounce)
			}
		case <-quiet.C:
			return
		case <-maxDelay.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
