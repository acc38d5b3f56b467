package config

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

// dirWatcher starts scans when the system reports file changes.
type dirWatcher struct {
	store          *DirStore
	watcher        *filewatch.Watcher
	rescanInterval time.Duration
	dirs           map[string]fs.FileInfo // directories watched at the last full scan
	tree           *symlinkFreeTree       // listing of the last full scan if it has no links, else nil
	touched        map[string]bool        // files with events since the last scan
	linkTargets    map[string]string      // path to read by event name: link targets, and components of the paths to them
	rescanSoon     bool                   // the last scan requested another one
	fullScan       bool                   // the next scan is a full scan
	fullScanDue    time.Time              // time of the next full scan without events
	// unwatchedScans counts consecutive scans that found unwatched directories. An event for a replaced directory may
	// end the watch of its replacement, so another scan follows. The count limits these scans if a directory cannot be
	// watched.
	unwatchedScans int
	timerC         <-chan time.Time
}

// scan scans the touched files, or all files if that is not enough.
func (f *dirWatcher) scan() {
	if !f.scanTouched() {
		f.scanAll()
	}
	f.touched, f.timerC = nil, nil
}

func (f *dirWatcher) scanTouched() (done bool) {
	if f.tree == nil || f.fullScan || !time.Now().Before(f.fullScanDue) {
		return false
	}
	f.rescanSoon, done = f.store.scanPaths(f.tree, f.touched)
	return done
}

func (f *dirWatcher) scanAll() {
	// Watch first, then scan: changes before the watch are found by the scan, and later changes produce events.
	found := listPaths(f.store.cfg.Paths)
	news := f.watchDirs(found.dirs)
	if f.watchLinks(found) || news {
		found = listPaths(f.store.cfg.Paths)
	}
	if f.unwatchedScans++; !news {
		f.unwatchedScans = 0
	}
	f.fullScan = news && f.unwatchedScans <= 3
	f.rescanSoon = f.store.scanListing(found, f.touched) || f.fullScan
	f.tree = found.newSymlinkFreeTree(f.dirs)
	f.fullScanDue = time.Now().Add(f.rescanInterval)
}

// watchDirs watches the directories. It skips those that are watched already and watches replaced ones again. unwatched
// reports whether a directory was not watched during the whole time since the last scan.
func (f *dirWatcher) watchDirs(dirs []foundDir) (news bool) {
	before, watched := f.dirs, f.watchedDirs()
	news = before == nil
	f.dirs = make(map[string]fs.FileInfo, len(dirs))
	for _, dir := range dirs {
		if known := before[dir.path]; known == nil || !watched[dir.path] || !os.SameFile(known, dir.info) {
			news = true
		}
		f.dirs[dir.path] = dir.info
		if err := f.watcher.Add(dir.path); err != nil {
			f.store.log.Debug("a directory cannot be watched; scanning it periodically", "dir", dir.path, "err", err)
			f.rescanInterval = min(f.rescanInterval, rescanUnwatched)
			news = true
		}
	}
	for _, root := range f.store.cfg.Paths {
		// Events in the parent report that a configured directory or file was replaced.
		parent := filepath.Dir(filepath.Clean(root))
		news = news || !watched[parent]
		_ = f.watcher.Add(parent)
	}
	return news
}

// watchedDirs returns the directories that are watched, without removed ones.
func (f *dirWatcher) watchedDirs() map[string]bool {
	watched := map[string]bool{}
	for _, dir := range f.watcher.WatchList() {
		watched[dir] = true
	}
	return watched
}

// timer returns the channel that fires when a scan is due without events.
func (f *dirWatcher) timer() <-chan time.Time {
	if f.timerC == nil {
		wait := time.Until(f.fullScanDue)
		if f.rescanSoon {
			wait = min(wait, removalGrace)
		}
		f.timerC = time.After(wait)
	}
	return f.timerC
}

// isRelevant reports whether an event concerns a file that is read.
func (f *dirWatcher) isRelevant(event fsnotify.Event) bool {
	if f.linkTargets[filepath.Clean(event.Name)] != "" {
		return true
	}
	name := filepath.Base(event.Name)
	if isEditorFile(name) && !strings.HasPrefix(name, "..") { // Kubernetes replaces the files of a volume by renaming "..data"
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

// collectEvents records events until the files have not changed for the debounce time.
func (f *dirWatcher) collectEvents(ctx context.Context, first fsnotify.Event) {
	f.touched = map[string]bool{}
	f.markTouched(first)
	most := time.NewTimer(maxDebounce)
	defer most.Stop()
	quiet := time.NewTimer(debounce)
	defer quiet.Stop()
	for {
		select {
		case event := <-f.watcher.Events:
			if f.isRelevant(event) {
				f.markTouched(event)
				quiet.Reset(debounce)
			}
		case <-quiet.C:
			return
		case <-most.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// markTouched records the file of an event under the name by which it is read.
func (f *dirWatcher) markTouched(event fsnotify.Event) {
	name := filepath.Clean(event.Name)
	f.touched[name] = true
	if link := f.linkTargets[name]; link != "" {
		f.touched[link] = true
	}
}
