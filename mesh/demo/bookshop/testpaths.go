package bookshop

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// maxSlow limits /slow, so that a mistyped number does not hold a connection for hours.
const maxSlow = time.Minute

// routeTests adds paths for tests to every service.
func (s *Server) routeTests(mux *http.ServeMux) {
	var requests atomic.Int64
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		a := s.newAnswer(r)
		a.Method, a.Headers = r.Method, r.Header
		s.writeAnswer(w, r, a)
	})
	mux.HandleFunc("GET /counters", func(w http.ResponseWriter, r *http.Request) {
		a := s.newAnswer(r)
		a.Counters = s.counters.snapshot()
		s.writeAnswer(w, r, a)
	})
	mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) {
		ms, err := strconv.Atoi(r.URL.Query().Get("ms"))
		if err != nil || ms < 0 || time.Duration(ms)*time.Millisecond > maxSlow {
			http.Error(w, "use /slow?ms=N, with N milliseconds from 0 to 60000", http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
			s.writeAnswer(w, r, s.newAnswer(r))
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("GET /flaky", func(w http.ResponseWriter, r *http.Request) {
		every, err := strconv.ParseInt(r.URL.Query().Get("every"), 10, 64)
		if err != nil || every < 1 {
			http.Error(w, "use /flaky?every=N: every Nth request fails, the first among them", http.StatusBadRequest)
			return
		}
		if (requests.Add(1)-1)%every == 0 {
			http.Error(w, "flaky: this one fails", http.StatusServiceUnavailable)
			return
		}
		s.writeAnswer(w, r, s.newAnswer(r))
	})
}

// counters counts by name. The zero value is ready.
type counters struct {
	mu     sync.Mutex
	byName map[string]int64
}

func (c *counters) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName == nil {
		c.byName = map[string]int64{}
	}
	c.byName[name]++
}

func (c *counters) snapshot() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.byName)
}
