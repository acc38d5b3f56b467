// Package fstimeout calls file systems that may hang, such as NFS, with a timeout.
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
	// maxCalls limits the concurrent calls: each hung call occupies a thread.
	maxCalls = 64
)

// TimeoutFS calls file systems with a timeout. A call to a hung file system, for example NFS, cannot be cancelled.
// Until it returns, further calls for the same directory fail immediately. TimeoutFS is safe for concurrent use.
type TimeoutFS struct {
	Timeout time.Duration // zero is one second
	// OnHang is called when a call times out, and OnResume when a hung call returns. Both may be nil.
	OnResume, OnHang func()

	mu          sync.Mutex
	directories map[string]*directory
	slots       chan struct{}
}

// directory serializes the calls for one directory.
type directory struct {
	turn  chan struct{}
	users int           // callers that run or wait
	hung  chan struct{} // closed when the running call times out
}

// HungError is the error for a directory whose file system hangs.
type HungError string

func (e HungError) Error() string {
	return fmt.Sprintf("%s: the file system does not answer", string(e))
}

// DoFile calls do, which may use the file at path.
func (d *TimeoutFS) DoFile(path string, do func()) error { return d.Do(filepath.Dir(path), do) }

// Do calls do, which may use the files of a directory, and waits for its end or the timeout. After an error, do may
// still be running, or may never have started: the caller must not then read variables that do writes.
func (d *TimeoutFS) Do(dir string, do func()) error {
	asked := d.enter(dir)
	if asked == nil {
		return HungError(dir)
	}
	if !d.begin(asked) {
		d.leave(dir, asked)
		return HungError(dir)
	}
	timer := time.NewTimer(d.limit())
	defer timer.Stop()
	ended := make(chan struct{})
	go d.answer(dir, asked, do, ended)
	select {
	case <-ended:
		return nil
	case <-timer.C:
	}
	if !d.abandon(asked, ended) {
		return nil
	}
	if d.OnHang != nil {
		d.OnHang()
	}
	return HungError(dir)
}

// enter returns the directory, or nil while a call for it hangs.
func (d *TimeoutFS) enter(dir string) *directory {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.directories == nil {
		d.directories, d.slots = make(map[string]*directory), make(chan struct{}, maxCalls)
	}
	asked := d.directories[dir]
	if asked == nil {
		asked = &directory{turn: make(chan struct{}, 1), hung: make(chan struct{})}
		d.directories[dir] = asked
	}
	if asked.isMute() {
		return nil
	}
	asked.users++
	return asked
}

func (d *TimeoutFS) limit() time.Duration { return cmp.Or(d.Timeout, defaultTimeout) }

func (d *directory) isMute() bool {
	select {
	case <-d.hung:
		return true
	default:
		return false
	}
}

// begin waits for the directory's turn, as long as earlier calls return, and then for a free slot.
func (d *TimeoutFS) begin(asked *directory) bool {
	select {
	case asked.turn <- struct{}{}:
	case <-asked.hung:
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
		<-asked.turn
		return false
	}
}

func (d *TimeoutFS) leave(dir string, asked *directory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if asked.users--; asked.users == 0 && d.directories[dir] == asked {
		delete(d.directories, dir)
	}
}

func (d *TimeoutFS) answer(dir string, asked *directory, do func(), ended chan struct{}) {
	do()
	d.mu.Lock()
	close(ended)
	late := asked.isMute()
	if late {
		delete(d.directories, dir)
	}
	d.mu.Unlock()
	<-d.slots
	<-asked.turn
	d.leave(dir, asked)
	if late && d.OnResume != nil {
		d.OnResume()
	}
}

// abandon stops waiting for a call, unless it has just returned.
func (d *TimeoutFS) abandon(asked *directory, ended <-chan struct{}) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-ended:
		return false
	default:
		close(asked.hung)
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

// call returns the result of f. A result that arrives after the timeout is dropped.
func call[T any](d *TimeoutFS, path string, question func() (T, error)) (answer T, err error) {
	type found struct {
		answer T
		err    error
	}
	came := make(chan found, 1)
	if err := d.DoFile(path, func() {
		answer, err := question()
		came <- found{answer, err}
	}); err != nil {
		return answer, err
	}
	f := <-came
	return f.answer, f.err
}
