package agent

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// given says whether something was given back since a moment.
func (s *settled) given(since time.Time) bool {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.After(since)
}

func TestPagesOfAProbeAreGivenBackAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &settled{last: began}
		s.afterWork() // a scrape while it starts
		s.ready = true
		defer s.end()
		s.afterAnswer()
		time.Sleep(restAtMost - time.Second)
		if s.given(began) {
			t.Error("given back for each of many probes")
		}
		time.Sleep(2 * time.Second)
		if !s.given(began) {
			t.Error("not given back since it was lately")
		}
		began = time.Now()
		for range 10 {
			s.afterAnswer()
			time.Sleep(restAfter / 2)
		}
		if s.given(began) {
			t.Error("given back between probes that follow each other")
		}
		time.Sleep(restAtMost)
		if !s.given(began) {
			t.Error("not given back after the last probe")
		}
	})
}

func TestProbesDoNotPutOffWhatAScrapeGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &settled{ready: true, last: began.Add(-time.Minute)}
		defer s.end()
		s.afterWork()
		for range 2 * restAfter / time.Second {
			s.afterAnswer()
			time.Sleep(time.Second)
		}
		if !s.given(began) {
			t.Error("nothing was given back while probes went on")
		}
	})
}

func TestNothingIsGivenBackAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &settled{ready: true, last: began.Add(-time.Minute)}
		s.afterAnswer()
		s.end()
		s.afterWork()
		time.Sleep(2 * restAfter)
		if s.given(began) {
			t.Error("given back after the end")
		}
	})
}

func TestGarbageOfMuchWorkDoesNotWaitForItsRest(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nothing else collects
	s := &settled{ready: true}
	defer s.end()
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	for deadline := time.Now().Add(time.Minute); now.NumGC < before.NumGC+3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d collections", now.NumGC-before.NumGC)
		}
		garbageOfWork = make([]byte, 2*mostGarbage)
		s.afterWork()
		runtime.ReadMemStats(&now)
	}
}

var garbageOfWork []byte // so that it is made at all
