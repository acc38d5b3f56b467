package envoy

import (
	"fmt"
	"sync"
	"time"
)

// oomInterval is how often the cgroup's OOM kill count is read while Envoy runs. With fewer reads, the agent would more
// often attribute an earlier kill of another process in the cgroup to Envoy. The interval is long, because such kills
// are rare and each read wakes a CPU in every pod.
const oomInterval = 5 * time.Minute

// oomCounter returns the number of OOM kills in a cgroup, and the file that contains it. ok is false if the number is
// not available.
type oomCounter func() (count uint64, file string, ok bool)

// oomWatcher detects whether the OOM kill count has risen between an earlier read and Envoy's exit.
type oomWatcher struct {
	counter oomCounter
	quit    chan struct{}
	done    sync.WaitGroup // waits for run
	// previous and last are the counts of the last two reads. compare uses previous, because the last read may have
	// happened between the kill and Envoy's exit.
	previous, last uint64 // only run accesses them; after run has returned, only compare
}

func startOOMWatcher(c oomCounter, interval time.Duration) *oomWatcher {
	w := &oomWatcher{counter: c, quit: make(chan struct{})}
	w.done.Go(func() { w.run(interval) })
	return w
}

func (w *oomWatcher) run(interval time.Duration) {
	if !w.sample() {
		return
	}
	w.previous = w.last
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-tick.C:
			w.sample()
		}
	}
}

func (w *oomWatcher) sample() bool {
	n, _, ok := w.counter()
	if ok {
		w.previous, w.last = w.last, n
	}
	return ok
}

// stop makes run return.
func (w *oomWatcher) stop() { close(w.quit) }

// evidence describes how the OOM kill count has risen. It returns "" if the count has not risen or cannot be read
// within reapGrace. The caller must call stop first.
func (w *oomWatcher) evidence() string {
	result := make(chan string, 1)
	go func() { result <- w.compare() }()
	return receiveWithin(reapGrace, result)
}

func (w *oomWatcher) compare() string {
	w.done.Wait()
	now, file, ok := w.counter()
	if !ok || now <= w.previous {
		return ""
	}
	return fmt.Sprintf("oom_kill in %s rose from %d to %d", file, w.previous, now)
}
