package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// stopGrace is how long running requests may last after the server is stopped.
const stopGrace = 2 * time.Second

// Config is the configuration of the server. A path whose function is nil returns 404.
type Config struct {
	// Address is the listening address, such as "0.0.0.0:15020", or "unix:" and the path of a socket.
	Address string
	// SocketOwner is the owner of a unix socket; nil means this process's user.
	SocketOwner *owner.Owner
	// Checks determine the response of /healthz/ready: all must be healthy.
	Checks []Check
	// Liveness determines the response of /healthz/live. Without checks, the response is always 200.
	Liveness []Check
	// Gatherer returns the agent's metrics. Registerer receives the metrics of this server. Both may be nil.
	Gatherer   prometheus.Gatherer
	Registerer prometheus.Registerer
	// Metrics configures further sources of /metrics, which are merged with the metrics of Gatherer.
	Metrics Metrics
	// AppProbes are served under /app-health/ and /app-lifecycle/.
	AppProbes AppProbes
	// Started is when the agent started. The startup metric measures from it to the first readiness.
	Started time.Time
	// OnFirstReady, if set, is called when all checks pass for the first time.
	OnFirstReady func()
	// NoProfiles disables /debug/pprof/.
	NoProfiles bool
	// CheckCaller returns an error for a local TCP connection that must not use admin requests and debug pages. Its
	// arguments are the client's and the server's address. nil accepts all connections.
	CheckCaller func(client, server netip.AddrPort) error
	// Drain starts a drain, and Quit stops the agent. A POST from loopback calls them.
	Drain func()
	Quit  func()
	// Certificates, XDS and Config return the content of /debug/certz, /debug/xdsz and /debug/config. The pages show it
	// as JSON.
	Certificates func() any
	XDS          func() any
	// XDSHistory returns the content of /debug/xdsz/history.
	XDSHistory func() any
	Config     func() any
	// Envoy returns the content of /debug/envoyz.
	Envoy func() any
	// Names serves /debug/ndsz. nil: there is no DNS name table.
	Names  http.Handler
	Logger *slog.Logger
}

// Server is the HTTP server at the status port.
type Server struct {
	Config
	listener  net.Listener
	http      *http.Server
	metrics   *metrics
	idle      newConns
	connLimit connLimiter
	scraper   *http.Client
	scrapes   *scrapeLimiter
	buffers   scrapeBufferPool
	app       *appProbes
	ready     atomic.Bool // set by the first successful readiness check
	seen      stateTimes
	refusals  refusalLog
}

// New creates the server and opens its port. If the port is in use, the error names the process that uses it.
func New(c Config) (*Server, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	s := &Server{Config: c, metrics: m, scraper: newScraper(), scrapes: newScrapeLimiter(maxScrapes, maxScrapesPerClient, maxHold), connLimit: connLimiter{max: maxConnections}}
	if err := s.registerReadiness(c.Registerer); err != nil {
		return nil, err
	}
	listener, err := c.listen()
	if err != nil {
		return nil, fmt.Errorf("starting the agent's status server: %w", err)
	}
	s.listener = listener
	s.app = newAppProbes(c.AppProbes, listener.Addr(), m.probes, c.Logger)
	s.http = &http.Server{
		ConnState:         s.noteConnection,
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// listen opens the port or the unix socket. A socket accepts connections of the agent's user, root, and the proxy's
// user only.
func (c Config) listen() (net.Listener, error) {
	if path, ok := strings.CutPrefix(c.Address, unixPrefix); ok {
		l, err := uds.ListenFor(c.SocketOwner, path, 0o600)
		if err != nil {
			return nil, err
		}
		return uds.FilterPeers(l, uds.DefaultUsers(), c.Logger), nil
	}
	l, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, portowner.Explain("tcp", c.Address, err)
	}
	return l, nil
}

const unixPrefix = "unix:"

func (s *Server) noteConnection(c net.Conn, state http.ConnState) {
	s.idle.onState(c, state)
	s.connLimit.onState(c, state)
}

// Addr returns the listening address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves requests until the context is cancelled, and then waits up to two seconds for running requests. Call it
// once.
func (s *Server) Run(ctx context.Context) error {
	defer s.scraper.CloseIdleConnections()
	defer s.app.prober.Close()
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving the agent's status port on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	s.idle.close()
	grace, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if err := s.http.Shutdown(grace); err != nil {
		_ = s.http.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the agent's status port on %s: %w", s.Addr(), err)
	}
	return nil
}

// Close closes the port of a server that was not run.
func (s *Server) Close() error { return s.listener.Close() }

// Health reports that the server is healthy. A running server always is.
func (s *Server) Health() (ok bool, reason string) { return true, "" }
