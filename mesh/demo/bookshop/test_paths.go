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

// maxSlow is the maximum delay of /slow. Without it, a mistyped number could block a connection for hours.
const maxSlow = time.Minute

// routeTests adds the test paths that every service has.
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
			http.Error(w, "use /flaky?every=N: the first request and every Nth request after it fail", http.StatusBadRequest)
			return
		}
		if (requests.Add(1)-1)%every == 0 {
			http.Error(w, "flaky: this request fails", http.StatusServiceUnavailable)
			return
		}
		s.writeAnswer(w, r, s.newAnswer(r))
	})
}

// counters is a set of named counters. The zero value is empty and ready to use.
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
