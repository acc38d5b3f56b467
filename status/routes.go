package status

import (
	"net/http"
	"time"
)

// maxRequestTime limits the duration of a request. It is set per route and not on the http.Server, because profiles may
// last longer.
const maxRequestTime = 30 * time.Second

// handler returns the routes of the server.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", s.serveReady)
	mux.HandleFunc("GET /healthz/live", s.serveLive)
	var scrapes, envoy http.Handler = http.HandlerFunc(s.serveMetrics), http.HandlerFunc(s.serveEnvoyStats)
	if s.Metrics.OnlyLoopback {
		scrapes, envoy = onlyLoopback(scrapes), onlyLoopback(envoy)
	}
	mux.Handle("GET /metrics", scrapes)
	mux.Handle("GET /stats/prometheus", scrapes)
	mux.Handle("GET "+envoyStatsPath, envoy)
	mux.HandleFunc("GET /{$}", serveIndex)

	top := http.NewServeMux()
	for pattern, page := range s.privatePages() {
		into := mux
		if pattern == profilesPath { // a profile may last longer than maxRequestTime
			into = top
		}
		into.Handle(pattern, s.private(page))
	}
	top.Handle("/app-health/", s.app) // the probe has its own timeout
	top.Handle("/app-lifecycle/", s.app)
	top.Handle("/", bounded(mux))
	return withoutBody(top)
}

// bodyTime limits how long a client may send a body that the server does not read.
const bodyTime = time.Second

// withoutBody makes the server respond without reading the request's body. net/http would read the body first, without
// a time limit. A few hundred such requests would exclude the kubelet, and three would block all scrapes.
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
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxRequestTime))
		next.ServeHTTP(w, r)
	})
}

// names returns the handler of the DNS name table. Without a table it responds as Istio's agent does.
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
GET  /stats/envoy       metrics of Envoy only, as on its Prometheus port
GET  /app-health/...    probes of the application, for a kubelet (also /app-lifecycle/...)
POST /drain             start to drain (loopback)
POST /quitquitquit      stop the agent and Envoy (loopback)
GET  /debug/certz       certificates (loopback)
GET  /debug/xdsz        configuration from the control plane (loopback)
GET  /debug/xdsz/history last exchanges between Envoy and the control plane (loopback)
GET  /debug/envoyz      Envoy's state, its last exit, what a drain waits for (loopback)
GET  /debug/ndsz        DNS names of the mesh (loopback)
GET  /debug/config      the agent's own configuration (loopback)
GET  /debug/pprof/      profiles (loopback)
`
