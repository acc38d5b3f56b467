// Package bookshop implements the services of the demo's book shop. Each service calls its upstreams by their plain
// names, and its responses contain what it observed: the caller's identity, and the results of the upstream calls. The
// services do not depend on the mesh. If traffic is not captured, they call upstreams through the sidecar's HTTP proxy.
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

// Config configures a service. Only Service is required.
type Config struct {
	// Service is one of ServiceNames. Version defaults to "v1". Instance is the name of this process in responses; it
	// defaults to SERVICE-VERSION.
	Service, Version, Instance string
	// Listen is the listen address as host:port.
	Listen string
	// Proxy is the HTTP proxy for requests to upstreams; nil selects direct requests.
	Proxy *url.URL
	// Log receives a line for each request; nil disables the log.
	Log *log.Logger
}

// services maps the name of each service to the function that adds its paths.
var services = map[string]func(*Server, *http.ServeMux){
	"page":    (*Server).routePage,
	"details": (*Server).routeDetails,
	"reviews": (*Server).routeReviews,
	"ratings": (*Server).routeRatings,
	"crawler": (*Server).routeCrawler,
}

// ServiceNames returns the names of all services, separated by commas.
func ServiceNames() string {
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

// New opens the listener of a service. It returns an error if the port is in use. Run serves requests.
func New(c Config) (*Server, error) {
	route, ok := services[c.Service]
	if !ok {
		return nil, fmt.Errorf("--service %q is not a service of the book shop; use one of %s", c.Service, ServiceNames())
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
	s.handler = s.observe(mux)
	return s, nil
}

// Addr returns the address on which the service listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves requests until ctx ends. It then waits up to two seconds for active requests, and returns nil.
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
		server.Close() // closes the remaining connections
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", s.config.Instance, err)
	}
	return nil
}

// observe returns a handler that counts and logs each request, and sets a response header with the instance's name.
func (s *Server) observe(next *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		w.Header().Set("X-Served-By", s.config.Instance)
		next.ServeHTTP(rec, r)
		s.counters.add(fmt.Sprintf("%s %d", counterName(r.Pattern), rec.status))
		s.config.Log.Printf("%s %s → %d in %d ms, for %s", r.Method, r.URL.Path, rec.status,
			time.Since(start).Milliseconds(), shortCaller(Caller(r.Header)))
	})
}

// counterName returns the name of the counter for requests that match a mux pattern: the pattern's path, or "other" for
// requests without a pattern. The number of patterns is limited, whereas clients could request any number of paths.
func counterName(pattern string) string {
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
