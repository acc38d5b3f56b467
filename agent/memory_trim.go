package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// An agent runs in every pod, so memory that only its start needs is multiplied by the number of pods.
const (
	// startupTime is the time after which the startup counts as complete.
	startupTime = 5 * time.Second
	// During startup, the agent's heap may grow to 16 MB before a collection. It stays below that, so no collection
	// slows down Envoy's start.
	startHeapGrowth = 400
	// heapGrowth is the GC percentage after startup. The agent's heap is a few megabytes; a collection needs less than
	// a millisecond.
	heapGrowth = 40
	// minDropInterval is the minimum interval between drops of program pages, each of which causes some hundred page
	// faults.
	minDropInterval = 20 * time.Second
	// trimDelay is the delay between a scrape or probe and the trim, which a further one postpones.
	trimDelay = 2 * time.Second
	// maxGarbage is the amount of garbage after which a collection runs without waiting for the trim. Otherwise a
	// series of scrapes would let the heap grow to its GC limit.
	maxGarbage = 256 << 10
	// minTrimInterval is the minimum interval between trims after probes: mapping the pages again costs a probe a third
	// of a millisecond.
	minTrimInterval = 5 * time.Second
)

// relaxGC trades memory for speed until memoryTrimmer.run ends the startup.
func relaxGC() { debug.SetGCPercent(startHeapGrowth) }

// memoryTrimmer returns memory to the kernel that an idle agent does not need. It has no effect until run has enabled
// it.
type memoryTrimmer struct {
	mu       sync.Mutex
	pages    programPages
	last     time.Time
	ready    bool
	timer    *time.Timer // nil until the first scheduled trim
	freeHeap bool        // the next trim also frees heap memory
	// collecting is true while a collection runs.
	collecting bool
	// releaseBuffers releases pooled buffers before a trim of the heap; may be nil.
	releaseBuffers func()
}

// dropPages drops the program's pages, unless it did so recently. It is called while the process is awake anyway. Pages
// in use are mapped again.
func (s *memoryTrimmer) dropPages() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready && time.Since(s.last) >= minDropInterval {
		s.pages.drop()
		s.last = time.Now()
	}
}

// trimAfterWork schedules a trim after infrequent work such as a scrape: of garbage, free heap memory and program
// pages.
func (s *memoryTrimmer) trimAfterWork() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freeHeap = s.ready
	s.scheduleTrim(trimDelay)
	s.collectIfNeeded()
}

// collectWhileWaiting collects garbage while a scrape waits for other sources.
func (s *memoryTrimmer) collectWhileWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collectIfNeeded()
}

func (s *memoryTrimmer) collectIfNeeded() {
	if s.ready && !s.collecting && garbageBytes() > maxGarbage {
		s.collecting = true
		go s.collect()
	}
}

// collect runs one garbage collection.
func (s *memoryTrimmer) collect() {
	runtime.GC()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collecting = false
}

// garbageBytes returns an upper estimate of the memory allocated since the last collection.
func garbageBytes() uint64 {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(heap)
	all, live := heap[0].Value.Uint64(), heap[1].Value.Uint64()
	return max(all, live) - live
}

// trimAfterAnswer schedules a drop of the program pages that a request such as a probe has mapped: about 7 MB, because
// the kernel maps the surrounding pages too. If probes follow in short intervals, the pages stay mapped.
func (s *memoryTrimmer) trimAfterAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.freeHeap { // a pending heap trim is not postponed by probes
		s.scheduleTrim(max(trimDelay, minTrimInterval-time.Since(s.last)))
	}
}

func (s *memoryTrimmer) scheduleTrim(wait time.Duration) {
	switch {
	case !s.ready:
	case s.timer == nil:
		s.timer = time.AfterFunc(wait, s.trim)
	default:
		s.timer.Reset(wait)
	}
}

func (s *memoryTrimmer) trim() {
	s.mu.Lock()
	worked := s.freeHeap
	s.freeHeap = false
	s.mu.Unlock()
	if worked {
		if s.releaseBuffers != nil {
			s.releaseBuffers()
		}
		debug.FreeOSMemory()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		s.pages.drop()
		s.last = time.Now()
	}
}

// stop disables the trimmer.
func (s *memoryTrimmer) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = false
	if s.timer != nil {
		s.timer.Stop()
	}
}

// run ends the startup: it frees the garbage of reading the configuration and drops the program pages that only
// initialisation uses. After each later collection it drops the pages again, until ctx ends.
func (s *memoryTrimmer) run(ctx context.Context) {
	if !sleep(ctx, startupTime) {
		return
	}
	debug.SetGCPercent(heapGrowth)
	runtime.GC() // a sync.Pool releases its buffers at the second collection
	debug.FreeOSMemory()
	s.mu.Lock()
	s.pages, s.ready = readProgramPages(), true
	s.mu.Unlock()
	s.dropPages()
	context.AfterFunc(ctx, s.stop)
	afterCollections(ctx, s.dropPages)
}

// afterCollections calls do after each garbage collection until ctx ends. The collector reads types and tables
// throughout the program, and the kernel maps fifteen more pages around each. Without this, 8 MB stay mapped until the
// next collection. It does not wake the process.
func afterCollections(ctx context.Context, do func()) {
	type token struct{ _ [64]byte } // large enough not to share a memory block with a live object
	runtime.AddCleanup(&token{}, func(struct{}) {
		if ctx.Err() == nil {
			do()
			afterCollections(ctx, do)
		}
	}, struct{}{})
}
