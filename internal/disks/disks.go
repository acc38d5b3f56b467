// Package disks asks file systems that may not answer.
package disks

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
	// defaultPatience is how long a file system is waited for.
	defaultPatience = time.Second
	// mostQuestions bounds what is asked at once: each question without an answer keeps a thread.
	mostQuestions = 64
)

// Disks are the file systems that a part reads and writes. One of them, that of a network for instance, may take a question
// and never answer it, and nobody can call that off: nothing else is asked about such a directory until it answers, and
// nobody waits for it.
type Disks struct {
	Patience time.Duration // zero is a second
	// Resumed is called when something was answered at last, and Stood when something is not; nil is for nobody.
	Resumed, Stood func()

	mu          sync.Mutex
	directories map[string]*directory
	slots       chan struct{}
}

// directory is asked one thing at a time.
type directory struct {
	turn  chan struct{}
	users int           // who asks, and who waits for a turn
	mute  chan struct{} // closed when what it is asked is given up
}

// StandsError says that nothing is known of a directory's files.
type StandsError string

func (e StandsError) Error() string {
	return fmt.Sprintf("%s: the file system does not answer", string(e))
}

// Around asks about a file.
func (d *Disks) Around(path string, do func()) error { return d.Ask(filepath.Dir(path), do) }

// Ask does something with the files of a directory, and waits for the end of it, up to a point. After an error it may go on
// still, if it was begun at all: so it has to leave its findings where that does no harm.
func (d *Disks) Ask(dir string, do func()) error {
	asked := d.enter(dir)
	if asked == nil {
		return StandsError(dir)
	}
	if !d.begin(asked) {
		d.leave(dir, asked)
		return StandsError(dir)
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
	if !d.giveUp(asked, ended) {
		return nil
	}
	if d.Stood != nil {
		d.Stood()
	}
	return StandsError(dir)
}

// enter gives nil where no answer is to be had.
func (d *Disks) enter(dir string) *directory {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.directories == nil {
		d.directories, d.slots = make(map[string]*directory), make(chan struct{}, mostQuestions)
	}
	asked := d.directories[dir]
	if asked == nil {
		asked = &directory{turn: make(chan struct{}, 1), mute: make(chan struct{})}
		d.directories[dir] = asked
	}
	if asked.isMute() {
		return nil
	}
	asked.users++
	return asked
}

func (d *Disks) limit() time.Duration { return cmp.Or(d.Patience, defaultPatience) }

func (d *directory) isMute() bool {
	select {
	case <-d.mute:
		return true
	default:
		return false
	}
}

// begin waits for a turn, for as long as others are answered, and then for one of the slots of all.
func (d *Disks) begin(asked *directory) bool {
	select {
	case asked.turn <- struct{}{}:
	case <-asked.mute:
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

func (d *Disks) leave(dir string, asked *directory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if asked.users--; asked.users == 0 && d.directories[dir] == asked {
		delete(d.directories, dir)
	}
}

func (d *Disks) answer(dir string, asked *directory, do func(), ended chan struct{}) {
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
	if late && d.Resumed != nil {
		d.Resumed()
	}
}

// giveUp waits no longer, unless the answer has just come.
func (d *Disks) giveUp(asked *directory, ended <-chan struct{}) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-ended:
		return false
	default:
		close(asked.mute)
		return true
	}
}

// ReadFile is os.ReadFile, up to a point.
func (d *Disks) ReadFile(path string) ([]byte, error) {
	return answerTo(d, path, func() ([]byte, error) { return os.ReadFile(path) })
}

// Stat is os.Stat, up to a point.
func (d *Disks) Stat(path string) (fs.FileInfo, error) {
	return answerTo(d, path, func() (fs.FileInfo, error) { return os.Stat(path) })
}

// answerTo keeps what comes too late from who waits no longer.
func answerTo[T any](d *Disks, path string, question func() (T, error)) (answer T, err error) {
	type found struct {
		answer T
		err    error
	}
	came := make(chan found, 1)
	if err := d.Around(path, func() {
		answer, err := question()
		came <- found{answer, err}
	}); err != nil {
		return answer, err
	}
	f := <-came
	return f.answer, f.err
}
