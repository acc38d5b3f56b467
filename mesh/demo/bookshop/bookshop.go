// Package bookshop is the program that the demo's workloads run: a small book shop in services that call each other by
// plain name, and report what they saw. It knows nothing of the mesh but that an HTTP proxy leads to its upstreams.
package bookshop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"time"
)

// Config says which service to be and where. Service is needed; the rest has defaults.
type Config struct {
	// Service is one of Names; Version is "v1" when empty; Instance names this process in answers (service-version).
	Service, Version, Instance string
	// Listen is host:port.
	Listen string
	// Proxy is where requests to upstreams go; nil asks the upstreams' names directly.
	Proxy *url.URL
	// Log gets a line for each request, for people to read; nil drops them.
	Log *log.Logger
}

// services holds what each service adds to the paths that all have.
var services = map[string]func(*Server, *http.ServeMux){
	"page":    (*Server).routePage,
	"details": (*Server).routeDetails,
	"reviews": (*Server).routeReviews,
	"ratings": (*Server).routeRatings,
	"crawler": (*Server).routeCrawler,
}

// Names lists the services, for messages.
func Names() string {
	names := make([]string, 0, len(services))
	for name := range services {
		names = append(names, name)
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}

// Server is one service of the shop. Safe for concurrent use.
type Server struct {
	config   Config
	listener net.Listener
	handler  http.Handler
	client   *http.Client
	counters counters
}

// New listens, so that a port in use is an error here; Run serves.
func New(c Config) (*Server, error) {
	route, ok := services[c.Service]
	if !ok {
		return nil, fmt.Errorf("--service %q is not a service of the book shop; it has %s", c.Service, Names())
	}
	if c.Version == "" {
		c.Version = "v1"
	}
	if c.Instance == "" {
		c.Instance = c.Service + "-" + c.Version
	}
	if c.Log == nil {
		c.Log = log.New(io.Discard, "", 0)
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("%s cannot listen on %s: %w", c.Instance, c.Listen, err)
	}
	s := &Server{config: c, listener: listener, client: newClient(c.Proxy)}
	mux := http.NewServeMux()
	s.routeTests(mux)
	route(s, mux)
	s.handler = s.observed(mux)
	return s, nil
}

// Addr is where the service listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until the context ends, lets requests under way finish for a moment, and returns nil then.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{Handler: s.handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(s.listener) }()
	s.config.Log.Printf("%s %s listens on %s", s.config.Service, s.config.Version, s.Addr())
	defer s.client.CloseIdleConnections()
	select {
	case err := <-failed:
		return fmt.Errorf("serving %s: %w", s.config.Instance, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		server.Close() // whoever is still being answered has had his time
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", s.config.Instance, err)
	}
	return nil
}

// observed counts and logs each request, and says in a header who answered.
func (s *Server) observed(next *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		w.Header().Set("X-Served-By", s.config.Instance)
		next.ServeHTTP(rec, r)
		s.counters.add(fmt.Sprintf("%s %d", pathOf(r.Pattern), rec.status))
		s.config.Log.Printf("%s %s → %d in %d ms, for %s", r.Method, r.URL.Path, rec.status,
			time.Since(start).Milliseconds(), shortCaller(Caller(r.Header)))
	})
}

// pathOf makes a bounded counter name of a mux pattern: paths that no pattern knows count together.
func pathOf(pattern string) string {
	if pattern == "" {
		return "other"
	}
	return pattern[strings.Index(pattern, "/"):]
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}
