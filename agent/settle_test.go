package agent

import (
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
		time.Sleep(restAtMost)
		if s.given(began) {
			t.Error("given back for each of many probes")
		}
		for range 10 {
			s.afterAnswer()
			time.Sleep(restAfter / 2)
		}
		if s.given(began) {
			t.Error("given back between probes that follow each other")
		}
		time.Sleep(restAfter)
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
