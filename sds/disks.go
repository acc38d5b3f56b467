package sds

import (
	"cmp"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

const (
	// diskPatience is how long a file system is waited for.
	diskPatience = time.Second
	// mostQuestions bounds what is asked at once: each question without an answer keeps a thread.
	mostQuestions = 64
)

// disks are the file systems that a part reads and writes. One of them, that of a network for instance, may take a question
// and never answer it, and nobody can call that off: nothing else is asked about such a directory until it answers, and
// nobody waits for it.
type disks struct {
	patience time.Duration // zero is diskPatience
	// resumed is called when something was answered at last, and stood when something is not; nil is for nobody.
	resumed, stood func()

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

// standsError says that nothing is known of a directory's files.
type standsError string

func (e standsError) Error() string {
	return fmt.Sprintf("%s: the file system does not answer", string(e))
}

// around asks about a file.
func (d *disks) around(path string, do func()) error { return d.ask(filepath.Dir(path), do) }

// ask does something with the files of a directory, and waits for the end of it, up to a point. After an error it may go on
// still, if it was begun at all: so it has to leave its findings where that does no harm.
func (d *disks) ask(dir string, do func()) error {
	asked := d.enter(dir)
	if asked == nil {
		return standsError(dir)
	}
	if !d.begin(asked) {
		d.leave(dir, asked)
		return standsError(dir)
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
	if d.stood != nil {
		d.stood()
	}
	return standsError(dir)
}

// enter gives nil where no answer is to be had.
func (d *disks) enter(dir string) *directory {
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

func (d *disks) limit() time.Duration { return cmp.Or(d.patience, diskPatience) }

func (d *directory) isMute() bool {
	select {
	case <-d.mute:
		return true
	default:
		return false
	}
}

// begin waits for a turn, for as long as others are answered, and then for one of the slots of all.
func (d *disks) begin(asked *directory) bool {
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

func (d *disks) leave(dir string, asked *directory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if asked.users--; asked.users == 0 && d.directories[dir] == asked {
		delete(d.directories, dir)
	}
}

func (d *disks) answer(dir string, asked *directory, do func(), ended chan struct{}) {
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
	if late && d.resumed != nil {
		d.resumed()
	}
}

// giveUp waits no longer, unless the answer has just come.
func (d *disks) giveUp(asked *directory, ended <-chan struct{}) bool {
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
