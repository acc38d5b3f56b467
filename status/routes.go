package status

import (
	"net/http"
	"net/netip"
	"time"
)

// longestAnswer bounds how long a request may take in all. Profiles have no such bound, which is why the server as a
// whole has none.
const longestAnswer = 30 * time.Second

// handler is the list of all that the server answers.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", s.serveReady)
	mux.HandleFunc("GET /healthz/live", s.serveLive)
	var scrapes http.Handler = http.HandlerFunc(s.serveMetrics)
	if s.Metrics.OnlyLoopback {
		scrapes = onlyLoopback(scrapes)
	}
	mux.Handle("GET /metrics", scrapes)
	mux.Handle("GET /stats/prometheus", scrapes)
	mux.Handle("/drain", onlyLoopback(order("drain", s.Drain, false)))
	mux.Handle("/quitquitquit", onlyLoopback(order("quit", s.Quit, true)))
	mux.Handle("GET /debug/certz", onlyLoopback(asJSON(s.Certificates)))
	mux.Handle("GET /debug/xdsz", onlyLoopback(asJSON(s.XDS)))
	mux.Handle("GET /debug/xdsz/history", onlyLoopback(asJSON(s.XDSHistory)))
	mux.Handle("GET /debug/envoyz", onlyLoopback(asJSON(s.Envoy)))
	mux.Handle("GET /debug/ndsz", onlyLoopback(s.names()))
	mux.Handle("GET /debug/config", onlyLoopback(asJSON(s.Config.Config)))
	mux.HandleFunc("GET /{$}", serveIndex)

	top := http.NewServeMux()
	if !s.NoProfiles {
		top.Handle("/debug/pprof/", onlyLoopback(profiles()))
	}
	top.Handle("/app-health/", s.app) // whose time is the probe's own
	top.Handle("/app-lifecycle/", s.app)
	top.Handle("/", bounded(mux))
	return withoutBody(s.told(top))
}

// told has Answered called, also after scrapes, of which Scraped has told before.
func (s *Server) told(next http.Handler) http.Handler {
	if s.Answered == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.Answered()
		next.ServeHTTP(w, r)
	})
}

// bodyTime is how long a caller may send what nobody here reads.
const bodyTime = time.Second

// withoutBody answers without the request's body, for which nothing here has a use. net/http would read it before it
// answers, and wait for it as long as its sender likes: a few hundred such requests would keep a kubelet out, and three
// all scrapes.
func withoutBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
		}
		next.ServeHTTP(w, r)
	})
}

func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(longestAnswer))
		next.ServeHTTP(w, r)
	})
}

// onlyLoopback turns away callers from other machines and pods.
func onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "only from the same pod or machine (loopback)", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// names answers as Istio's agent does where it has no name table.
func (s *Server) names() http.Handler {
	if s.Names != nil {
		return s.Names
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte("{}"))
	})
}

func serveIndex(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(index))
}

const index = `pilotfish agent

GET  /healthz/ready     readiness, with reasons (?format=json)
GET  /healthz/live      liveness, with reasons (?format=json)
GET  /metrics           metrics of agent, Envoy and application (also /stats/prometheus)
GET  /app-health/...    probes of the application, for a kubelet (also /app-lifecycle/...)
POST /drain             begin to drain (loopback)
POST /quitquitquit      end the agent and Envoy (loopback)
GET  /debug/certz       certificates (loopback)
GET  /debug/xdsz        configuration from the control plane (loopback)
GET  /debug/xdsz/history what happened last between Envoy and the control plane (loopback)
GET  /debug/envoyz      Envoy's state, its last end, what a drain waits for (loopback)
GET  /debug/ndsz        names of the mesh (loopback)
GET  /debug/config      the agent's own configuration (loopback)
GET  /debug/pprof/      profiles (loopback)
`
