package status

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
)

// maxProfile limits a profile's duration in seconds, because profiling slows the agent down and uses memory.
const maxProfile = 60

const profilesPath = "/debug/pprof/"

// pprofHandler serves /debug/pprof/.
func pprofHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return profileLimits(mux)
}

// profileLimits rejects a profile while another is running, and profiles that are longer than maxProfile.
func profileLimits(next http.Handler) http.Handler {
	turn := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := r.URL.Query().Get("seconds"); text != "" {
			if seconds, err := strconv.ParseFloat(text, 64); err != nil || !(seconds >= 0 && seconds <= maxProfile) {
				http.Error(w, fmt.Sprintf("seconds=%q: write a number from 0 to %d", text, maxProfile), http.StatusBadRequest)
				return
			}
		}
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "another profile is in progress", http.StatusTooManyRequests)
		}
	})
}
