package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// HTTPServer is an HTTP server for the kubelet's probes or for Prometheus.
type HTTPServer struct {
	listener net.Listener
	http     *http.Server
}

// NewProbeServer returns a server for /healthz and /readyz. /healthz always succeeds. /readyz returns the result of
// ready.
func NewProbeServer(address string, ready health.Check, logger *slog.Logger) (*HTTPServer, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		c := ready()
		if !c.OK {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, c.Reason)
			return
		}
		fmt.Fprintln(w, "ready", c.Reason)
	})
	return newHTTPServer(address, mux, logger)
}

// NewMetricsServer returns a server for /metrics.
func NewMetricsServer(address string, m *Metrics, logger *slog.Logger) (*HTTPServer, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.Gatherer(), promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	return newHTTPServer(address, mux, logger)
}

func newHTTPServer(address string, handler http.Handler, logger *slog.Logger) (*HTTPServer, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for probes and metrics: %w (does another node agent run on this node?)", err)
	}
	return &HTTPServer{listener: listener, http: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}}, nil
}

// Addr returns the listener's address.
func (s *HTTPServer) Addr() net.Addr { return s.listener.Addr() }

// Run serves until the context ends.
func (s *HTTPServer) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}
