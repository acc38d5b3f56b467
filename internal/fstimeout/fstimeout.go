// Package fstimeout calls file systems with a timeout, because some may hang, such as NFS.
package fstimeout

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// defaultTimeout is the timeout of a call.
	defaultTimeout = time.Second
	// maxCalls limits the concurrent calls, because each hung call occupies an operating system thread.
	maxCalls = 64
)

// TimeoutFS calls file systems with a timeout. A call that hangs cannot be cancelled. Until it returns, further calls
// for the same directory fail immediately. TimeoutFS is safe for concurrent use.
type TimeoutFS struct {
	Timeout time.Duration // default 1 s
	// OnHang is called when a call times out, and OnResume when a hung call returns. Both may be nil.
	OnResume, OnHang func()

	mu          sync.Mutex
	directories map[string]*directory
	slots       chan struct{}
}

// directory is the state of the calls for one directory. These calls run one at a time.
type directory struct {
	turn  chan struct{} // contains one element while a call runs
	users int           // running and waiting calls
	hung  chan struct{} // closed when the running call times out
}

// HungError is the error for a directory whose file system hangs.
type HungError string

func (e HungError) Error() string {
	return fmt.Sprintf("%s: the file system does not respond", string(e))
}

// DoFile does the same as Do for the directory of the file at path.
func (d *TimeoutFS) DoFile(path string, do func()) error { return d.Do(filepath.Dir(path), do) }

// Do calls do, which may use the files in dir, and waits until do returns or the timeout has passed. After an error, do
// may still be running, or may never have started. In this case, the caller must not read variables that do writes.
func (d *TimeoutFS) Do(dir string, do func()) error {
	entry := d.enter(dir)
	if entry == nil {
		return HungError(dir)
	}
	if !d.begin(entry) {
		d.leave(dir, entry)
		return HungError(dir)
	}
	timer := time.NewTimer(d.limit())
	defer timer.Stop()
	returned := make(chan struct{})
	go d.runCall(dir, entry, do, returned)
	select {
	case <-returned:
		return nil
	case <-timer.C:
	}
	if !d.abandon(entry, returned) {
		return nil
	}
	if d.OnHang != nil {
		d.OnHang()
	}
	return HungError(dir)
}

// enter registers a call for the directory. It returns nil while a call for the directory hangs.
func (d *TimeoutFS) enter(dir string) *directory {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.directories == nil {
		d.directories, d.slots = make(map[string]*directory), make(chan struct{}, maxCalls)
	}
	entry := d.directories[dir]
	if entry == nil {
		entry = &directory{turn: make(chan struct{}, 1), hung: make(chan struct{})}
		d.directories[dir] = entry
	}
	if entry.isHung() {
		return nil
	}
	entry.users++
	return entry
}

func (d *TimeoutFS) limit() time.Duration { return cmp.Or(d.Timeout, defaultTimeout) }

func (d *directory) isHung() bool {
	select {
	case <-d.hung:
		return true
	default:
		return false
	}
}

// begin waits until earlier calls for the directory have returned, and then for one of maxCalls slots. It returns false
// if an earlier call hangs, or if no slot is free before the timeout.
func (d *TimeoutFS) begin(entry *directory) bool {
	select {
	case entry.turn <- struct{}{}:
	case <-entry.hung:
		return false
	}
	select {
	case d.slots <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(d.limit())
	defer timer.Stop()
	select {
	case d.slots <- struct{}{}:
		return true
	case <-timer.C:
		<-entry.turn
		return false
	}
}

func (d *TimeoutFS) leave(dir string, entry *directory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if entry.users--; entry.users == 0 && d.directories[dir] == entry {
		delete(d.directories, dir)
	}
}

// runCall calls do. If the call had timed out, it calls OnResume afterwards.
func (d *TimeoutFS) runCall(dir string, entry *directory, do func(), returned chan struct{}) {
	do()
	d.mu.Lock()
	close(returned)
	late := entry.isHung()
	if late {
		delete(d.directories, dir)
	}
	d.mu.Unlock()
	<-d.slots
	<-entry.turn
	d.leave(dir, entry)
	if late && d.OnResume != nil {
		d.OnResume()
	}
}

// abandon marks the directory as hung. If the call has just returned, it marks nothing and returns false.
func (d *TimeoutFS) abandon(entry *directory, returned <-chan struct{}) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-returned:
		return false
	default:
		close(entry.hung)
		return true
	}
}

// ReadFile is os.ReadFile with a timeout.
func (d *TimeoutFS) ReadFile(path string) ([]byte, error) {
	return call(d, path, func() ([]byte, error) { return os.ReadFile(path) })
}

// Stat is os.Stat with a timeout.
func (d *TimeoutFS) Stat(path string) (fs.FileInfo, error) {
	return call(d, path, func() (fs.FileInfo, error) { return os.Stat(path) })
}

// call returns the result of fetch. A result that arrives after the timeout is dropped.
func call[T any](d *TimeoutFS, path string, fetch func() (T, error)) (result T, err error) {
	type found struct {
		result T
		err    error
	}
	results := make(chan found, 1)
	if err := d.DoFile(path, func() {
		result, err := fetch()
		results <- found{result, err}
	}); err != nil {
		return result, err
	}
	f := <-results
	return f.result, f.err
}
