package agent

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// wasTrimmed reports whether a trim has run since a time.
func (s *memoryTrimmer) wasTrimmed(since time.Time) bool {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.After(since)
}

func TestPagesAreDroppedAfterProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &memoryTrimmer{last: began}
		s.trimAfterWork() // a scrape during startup
		s.ready = true
		defer s.stop()
		s.trimAfterAnswer()
		time.Sleep(minTrimInterval - time.Second)
		if s.wasTrimmed(began) {
			t.Error("given back for each of many probes")
		}
		time.Sleep(2 * time.Second)
		if !s.wasTrimmed(began) {
			t.Error("not given back since it was lately")
		}
		began = time.Now()
		for range 10 {
			s.trimAfterAnswer()
			time.Sleep(trimDelay / 2)
		}
		if s.wasTrimmed(began) {
			t.Error("given back between probes that follow each other")
		}
		time.Sleep(minTrimInterval)
		if !s.wasTrimmed(began) {
			t.Error("not given back after the last probe")
		}
	})
}

func TestProbesDoNotDelayTrimAfterScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &memoryTrimmer{ready: true, last: began.Add(-time.Minute)}
		defer s.stop()
		s.trimAfterWork()
		for range 2 * trimDelay / time.Second {
			s.trimAfterAnswer()
			time.Sleep(time.Second)
		}
		if !s.wasTrimmed(began) {
			t.Error("nothing was given back while probes went on")
		}
	})
}

func TestNoTrimAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &memoryTrimmer{ready: true, last: began.Add(-time.Minute)}
		s.trimAfterAnswer()
		s.stop()
		s.trimAfterWork()
		time.Sleep(2 * trimDelay)
		if s.wasTrimmed(began) {
			t.Error("given back after the end")
		}
	})
}

func TestLargeGarbageIsCollectedBeforeTrim(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // disables other collections
	s := &memoryTrimmer{ready: true}
	defer s.stop()
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	for deadline := time.Now().Add(time.Minute); now.NumGC < before.NumGC+3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d collections", now.NumGC-before.NumGC)
		}
		garbageOfWork = make([]byte, 2*maxGarbage)
		s.trimAfterWork()
		runtime.ReadMemStats(&now)
	}
}

var garbageOfWork []byte // prevents that the allocation is optimised away
