package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// stopGrace is how long answers that are under way may take once the server is told to stop.
const stopGrace = 2 * time.Second

// Config says where the server listens and what it tells. Nil functions make their path answer 404.
type Config struct {
	// Address is where to listen, as "0.0.0.0:15020", or "unix:" and the path of a socket.
	Address string
	// SocketOwner is who a unix socket is to be of; nil is this process's user.
	SocketOwner *owner.Owner
	// Checks decide on /healthz/ready: all of them have to be well.
	Checks []Check
	// Liveness decides on /healthz/live; without any it answers 200 as long as the agent answers at all.
	Liveness []Check
	// Gatherer holds the agent's metrics, Registerer gets those of this server; nil for none.
	Gatherer   prometheus.Gatherer
	Registerer prometheus.Registerer
	// Metrics are joined to those of Gatherer at /metrics.
	Metrics Metrics
	// AppProbes are answered under /app-health/ and /app-lifecycle/.
	AppProbes AppProbes
	// Started is when the agent started, for the metric that tells how long it took to become ready.
	Started time.Time
	// Scraped is called after each scrape that was answered; nil for none.
	Scraped func()
	// Paused is called in a scrape that has nothing to do until Envoy answers, which may be soon; nil for none.
	Paused func()
	// Answered is called after each request; nil for none.
	Answered func()
	// NoProfiles leaves /debug/pprof/ out.
	NoProfiles bool
	// Drain begins to drain, Quit ends the agent; both on a POST from loopback.
	Drain func()
	Quit  func()
	// Certificates, XDS and Config give what is shown as JSON under /debug/certz, /debug/xdsz and /debug/config.
	Certificates func() any
	XDS          func() any
	// XDSHistory is shown under /debug/xdsz/history.
	XDSHistory func() any
	Config     func() any
	// Envoy gives what is shown under /debug/envoyz.
	Envoy func() any
	// Names answers at /debug/ndsz; nil where there are no names of the mesh, which is told like an empty table.
	Names  http.Handler
	Logger *slog.Logger
}

// Server answers on the status port.
type Server struct {
	Config
	listener net.Listener
	http     *http.Server
	metrics  *metrics
	silent   silent
	crowd    crowd
	scraper  *http.Client
	scrapes  *turns
	kits     kits
	app      *appProbes
	ready    atomic.Bool // was ready once
	seen     sightings
}

// New makes the server and takes its port. When that is in use, the error says by which process.
func New(c Config) (*Server, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	s := &Server{Config: c, metrics: m, scraper: newScraper(), scrapes: newTurns(mostScrapes, mostOfOne, tenure), crowd: crowd{most: mostConnections}}
	if err := s.registerReadiness(c.Registerer); err != nil {
		return nil, err
	}
	listener, err := c.listen()
	if err != nil {
		return nil, fmt.Errorf("agent status server: %w", err)
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

// listen takes the port, or the unix socket, at which only the agent's user, root and that of proxies are heard.
func (c Config) listen() (net.Listener, error) {
	if path, ok := strings.CutPrefix(c.Address, unixPrefix); ok {
		l, err := uds.ListenFor(c.SocketOwner, path, 0o600)
		if err != nil {
			return nil, err
		}
		return uds.Only(l, uds.DefaultUsers(), c.Logger), nil
	}
	l, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, portowner.Explain("tcp", c.Address, err)
	}
	return l, nil
}

const unixPrefix = "unix:"

func (s *Server) noteConnection(c net.Conn, state http.ConnState) {
	s.silent.note(c, state)
	s.crowd.note(c, state)
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run answers until the context ends; then what is under way gets two seconds. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	defer s.scraper.CloseIdleConnections()
	defer s.app.prober.Close()
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("agent status server on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	s.silent.close()
	grace, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if err := s.http.Shutdown(grace); err != nil {
		_ = s.http.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("agent status server on %s: %w", s.Addr(), err)
	}
	return nil
}

// Close gives the port back when Run is never called.
func (s *Server) Close() error { return s.listener.Close() }

// Health says whether the server is well, which it is as long as it runs.
func (s *Server) Health() (ok bool, reason string) { return true, "" }
