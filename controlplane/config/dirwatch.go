package config

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// follower turns what the system tells of files into scans.
type follower struct {
	store   *DirStore
	watcher *fsnotify.Watcher
	every   time.Duration
	touched map[string]bool   // files that were told of since the last scan
	linked  map[string]string // the links that are read, by the file that each leads to
	soon    bool              // the last scan wants another one shortly
	next    <-chan time.Time
}

func (f *follower) scan() {
	// Directories first: what changes after they are watched is told of, and what changed before is seen by the scan.
	found := find(f.store.cfg.Paths)
	f.watch(found.dirs)
	f.watchLinked(found.files)
	f.soon = f.store.scan(f.touched)
	f.touched, f.next = nil, nil
}

// watch adds directories. Those that are watched already cost nothing, and one that was replaced is watched anew.
func (f *follower) watch(dirs []string) {
	for _, dir := range dirs {
		if err := f.watcher.Add(dir); err != nil {
			f.store.log.Debug("a directory cannot be watched; looking at it regularly", "dir", dir, "err", err)
			f.every = min(f.every, rescanUnwatched)
		}
	}
	for _, root := range f.store.cfg.Paths {
		// The parent tells when a directory or file that was named is itself replaced.
		_ = f.watcher.Add(filepath.Dir(filepath.Clean(root)))
	}
}

// watchLinked adds the directories of files that links lead to.
func (f *follower) watchLinked(files []foundFile) {
	f.linked = map[string]string{}
	for _, file := range files {
		if file.target != "" {
			f.linked[file.target] = file.path
			_ = f.watcher.Add(filepath.Dir(file.target)) // else the regular look at all files finds it
		}
	}
}

// timer is when to scan though nothing was told of.
func (f *follower) timer() <-chan time.Time {
	if f.next == nil {
		wait := f.every
		if f.soon {
			wait = vanishGrace
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
