package status

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
)

// longestProfile bounds the seconds that a profile may be asked to last: the agent is slower, and larger, meanwhile.
const longestProfile = 60

// profiles answers /debug/pprof/.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return profileLimits(mux)
}

// profileLimits lets one profile be taken at a time, and for a bounded time.
func profileLimits(next http.Handler) http.Handler {
	turn := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := r.URL.Query().Get("seconds"); text != "" {
			if seconds, err := strconv.ParseFloat(text, 64); err != nil || !(seconds >= 0 && seconds <= longestProfile) {
				http.Error(w, fmt.Sprintf("seconds=%q: write a number from 0 to %d", text, longestProfile), http.StatusBadRequest)
				return
			}
		}
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "another profile is being taken", http.StatusTooManyRequests)
		}
	})
}
