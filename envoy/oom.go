package envoy

import (
	"fmt"
	"sync"
	"time"
)

// oomInterval is how often the kernel's count is looked at while Envoy runs, so that an earlier death in the same
// cgroup (the agent's neighbours share it) is not taken for Envoy's. Such deaths are rare, and each look wakes a
// processor in every pod.
const oomInterval = 5 * time.Minute

// oomCounter tells how many processes of a cgroup were killed for lack of memory, and the file that says so; false where
// nothing does.
type oomCounter func() (count uint64, file string, ok bool)

// oomWatch compares the count at the end with the count shortly before.
type oomWatch struct {
	counter oomCounter
	quit    chan struct{}
	ended   sync.WaitGroup // of who watches
	// The count one look ago and at the last look. The older one counts as "before": the last look may have come between
	// the kill and the end.
	before, last uint64 // for who watches, and then for who asks
}

func watchOOM(c oomCounter, every time.Duration) *oomWatch {
	w := &oomWatch{counter: c, quit: make(chan struct{})}
	w.ended.Go(func() { w.follow(every) })
	return w
}

func (w *oomWatch) follow(every time.Duration) {
	if !w.look() {
		return
	}
	w.before = w.last
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-tick.C:
			w.look()
		}
	}
}

func (w *oomWatch) look() bool {
	n, _, ok := w.counter()
	if ok {
		w.before, w.last = w.last, n
	}
	return ok
}

// stop ends the watch.
func (w *oomWatch) stop() { close(w.quit) }

// evidence is that of a kill for lack of memory, once the watch has ended; nothing where there is none, or the kernel does not
// tell in time.
func (w *oomWatch) evidence() string {
	told := make(chan string, 1)
	go func() { told <- w.compare() }()
	return soon(reapGrace, told)
}

func (w *oomWatch) compare() string {
	w.ended.Wait()
	now, file, ok := w.counter()
	if !ok || now <= w.before {
		return ""
	}
	return fmt.Sprintf("oom_kill in %s rose from %d to %d", file, w.before, now)
}
