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

// follower turns what the system tells of files into scans.
type follower struct {
	store   *DirStore
	watcher *filewatch.Watcher
	every   time.Duration
	dirs    map[string]fs.FileInfo // that were watched when the last look at everything was made
	tree    *plainTree             // what that look found, if it was so plain; else nil
	touched map[string]bool        // files that were told of since the last scan
	linked  map[string]string      // the links that are read, by the file that each leads to, and what decides where these lead
	soon    bool                   // the last scan wants another one shortly
	all     bool                   // that is to be one of everything
	due     time.Time              // when everything is looked at though nothing was told of
	// stirred counts the scans in a row that found directories not watched. What the system tells of a directory that was
	// replaced may end the watch of the one in its place, so another look follows; a directory that cannot be watched at
	// all wants none.
	stirred int
	next    <-chan time.Time
}

// scan looks at what was told of, or at everything where that does not do.
func (f *follower) scan() {
	if !f.scanTouched() {
		f.scanAll()
	}
	f.touched, f.next = nil, nil
}

func (f *follower) scanTouched() (done bool) {
	if f.tree == nil || f.all || !time.Now().Before(f.due) {
		return false
	}
	f.soon, done = f.store.scanSome(f.tree, f.touched)
	return done
}

func (f *follower) scanAll() {
	// Directories first: what changes after they are watched is told of, and what changed before is seen by the scan.
	found := find(f.store.cfg.Paths)
	news := f.watch(found.dirs)
	if f.watchLinks(found) || news {
		found = find(f.store.cfg.Paths)
	}
	if f.stirred++; !news {
		f.stirred = 0
	}
	f.all = news && f.stirred <= 3
	f.soon = f.store.scanOf(found, f.touched) || f.all
	f.tree = found.tree(f.dirs)
	f.due = time.Now().Add(f.every)
}

// watch adds directories. Those that are watched already cost nothing, and one that was replaced is watched anew. It says
// whether any was not watched all the time since the last scan.
func (f *follower) watch(dirs []foundDir) (news bool) {
	before, watched := f.dirs, f.watched()
	news = before == nil
	f.dirs = make(map[string]fs.FileInfo, len(dirs))
	for _, dir := range dirs {
		if known := before[dir.path]; known == nil || !watched[dir.path] || !os.SameFile(known, dir.info) {
			news = true
		}
		f.dirs[dir.path] = dir.info
		if err := f.watcher.Add(dir.path); err != nil {
			f.store.log.Debug("a directory cannot be watched; looking at it regularly", "dir", dir.path, "err", err)
			f.every = min(f.every, rescanUnwatched)
			news = true
		}
	}
	for _, root := range f.store.cfg.Paths {
		// The parent tells when a directory or file that was named is itself replaced.
		parent := filepath.Dir(filepath.Clean(root))
		news = news || !watched[parent]
		_ = f.watcher.Add(parent)
	}
	return news
}

// watched are the directories that are watched. Those that were removed since are not among them.
func (f *follower) watched() map[string]bool {
	watched := map[string]bool{}
	for _, dir := range f.watcher.WatchList() {
		watched[dir] = true
	}
	return watched
}

// timer is when to scan though nothing was told of.
func (f *follower) timer() <-chan time.Time {
	if f.next == nil {
		wait := time.Until(f.due)
		if f.soon {
			wait = min(wait, vanishGrace)
		}
		f.next = time.After(wait)
	}
	return f.next
}

// concerns says whether an event is about what is read.
func (f *follower) concerns(event fsnotify.Event) bool {
	if f.linked[filepath.Clean(event.Name)] != "" {
		return true
	}
	name := filepath.Base(event.Name)
	if isEditorFile(name) && !strings.HasPrefix(name, "..") { // "..data" is how Kubernetes replaces a volume's files
		return false
	}
	return slices.ContainsFunc(f.store.cfg.Paths, func(root string) bool {
		root = filepath.Clean(root)
		return within(root, event.Name) || within(event.Name, root)
	})
}

func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// gather waits until the files are left alone.
func (f *follower) gather(ctx context.Context, first fsnotify.Event) {
	f.touched = map[string]bool{}
	f.touch(first)
	most := time.NewTimer(settleMost)
	defer most.Stop()
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	for {
		select {
		case event := <-f.watcher.Events:
			if f.concerns(event) {
				f.touch(event)
				quiet.Reset(settle)
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

// touch notes the file that an event is about, by the name by which it is read.
func (f *follower) touch(event fsnotify.Event) {
	name := filepath.Clean(event.Name)
	f.touched[name] = true
	if link := f.linked[name]; link != "" {
		f.touched[link] = true
	}
}
