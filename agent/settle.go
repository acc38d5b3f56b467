package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// An agent runs in every pod, so that what it needs only to start counts many times over.
const (
	// settleAfter is when starting is over, also where it takes long.
	settleAfter = 5 * time.Second
	// While it starts, the agent's heap may grow to 16 MB before it is collected, which it does not reach: collecting
	// would take time from Envoy's start.
	startHeapGrowth = 400
	// After that the collector runs when the heap has grown by so many percent. The agent's heap is a few megabytes,
	// which takes less than a millisecond to collect.
	heapGrowth = 40
	// forgetAtMost bounds how often the program's pages are given back: it costs some hundred page faults.
	forgetAtMost = 20 * time.Second
	// restAfter is how long after a scrape or a probe the agent gives back what that took, if no other came.
	restAfter = 2 * time.Second
	// mostGarbage is what work may leave behind until its rest: much work that follows each other would leave as much as
	// the heap may grow by.
	mostGarbage = 256 << 10
	// restAtMost bounds how often it does so for a probe: mapping them again costs a probe a third of a millisecond.
	restAtMost = 5 * time.Second
)

// hurry favours speed over memory until settle ends that.
func hurry() { debug.SetGCPercent(startHeapGrowth) }

// settled gives back the program's pages that are not needed at rest; it is made by settle.
type settled struct {
	mu    sync.Mutex
	pages pages
	last  time.Time
	ready bool
	rest  *time.Timer // nil until something was worth a rest
	work  bool        // the rest is to be that after work
	// collecting is while garbage of work is collected.
	collecting bool
	// giveUp gives up what work would use again, before the rest after it; nil for none.
	giveUp func()
}

// forget gives the pages back, unless that was done lately. It is for moments at which the process is awake: what the
// moments before have mapped goes, and what this one needs comes back.
func (s *settled) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready && time.Since(s.last) >= forgetAtMost {
		s.pages.forget()
		s.last = time.Now()
	}
}

// afterWork gives back soon what work like a scrape took, which comes in one piece and is not needed until the next one:
// the garbage, the memory of it, and the program's pages.
func (s *settled) afterWork() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work = s.ready
	s.restIn(restAfter)
	s.collectMuch()
}

// amidWork is for a moment at which work waits for others: what garbage there is is collected meanwhile.
func (s *settled) amidWork() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collectMuch()
}

func (s *settled) collectMuch() {
	if s.ready && !s.collecting && garbage() > mostGarbage {
		s.collecting = true
		go s.collect()
	}
}

// collect collects garbage besides other work.
func (s *settled) collect() {
	runtime.GC()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collecting = false
}

// garbage is what was allocated since the last collection, or a little more.
func garbage() uint64 {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(heap)
	all, live := heap[0].Value.Uint64(), heap[1].Value.Uint64()
	return max(all, live) - live
}

// afterAnswer gives back soon the program's pages that answering something like a probe took: a hundred places all over
// the program, which are some 7 MB with what the kernel maps around them. Where probes follow each other sooner than that
// they stay.
func (s *settled) afterAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.work { // what work took does not wait for the end of probes
		s.restIn(max(restAfter, restAtMost-time.Since(s.last)))
	}
}

func (s *settled) restIn(wait time.Duration) {
	switch {
	case !s.ready:
	case s.rest == nil:
		s.rest = time.AfterFunc(wait, s.giveBack)
	default:
		s.rest.Reset(wait)
	}
}

func (s *settled) giveBack() {
	s.mu.Lock()
	worked := s.work
	s.work = false
	s.mu.Unlock()
	if worked {
		if s.giveUp != nil {
			s.giveUp()
		}
		debug.FreeOSMemory()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		s.pages.forget()
		s.last = time.Now()
	}
}

// end has nothing given back any more.
func (s *settled) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = false
	if s.rest != nil {
		s.rest.Stop()
	}
}

// settle gives back what starting took: the garbage of reading and building the configuration, and the pages of the
// program that only initialisation reads. It does so with the pages again after collections until the context ends.
func (s *settled) settle(ctx context.Context) {
	if !sleep(ctx, settleAfter) {
		return
	}
	debug.SetGCPercent(heapGrowth)
	runtime.GC() // pools give their buffers to the second collection
	debug.FreeOSMemory()
	s.mu.Lock()
	s.pages, s.ready = program(), true
	s.mu.Unlock()
	s.forget()
	context.AfterFunc(ctx, s.end)
	afterCollections(ctx, s.forget)
}

// afterCollections has something done after each collection of garbage until the context ends. The collector reads types
// and tables from all over the program, and with each page that it reads the kernel maps fifteen more: without this
// they are 8 MB that nobody needs until the next collection. It wakes nobody up by itself.
func afterCollections(ctx context.Context, do func()) {
	type token struct{ _ [64]byte } // not so small that it would share its memory with something that lives on
	runtime.AddCleanup(&token{}, func(struct{}) {
		if ctx.Err() == nil {
			do()
			afterCollections(ctx, do)
		}
	}, struct{}{})
}
