package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Config is what a Server needs. Only Source is required.
type Config struct {
	Source Source
	// Identify gives the identity that a stream's peer proved, from the stream's context. A gRPC status error refuses the
	// stream. Nil: nobody has an identity.
	Identify func(ctx context.Context) (string, error)
	// SendTimeout bounds one send, which waits until the client has read nearly all that was sent before: one that takes
	// longer loses its stream, and may come back. Default 5 minutes: an Envoy with thousands of listeners to make, or at a
	// slow link, needs that, would begin anew after less, and costs little, since what is sent is shared by all streams. A
	// client that is gone is noticed by the connection's keepalive.
	SendTimeout time.Duration
	// Generators bounds how many clients' resources are generated at a time; default two a processor.
	Generators int
	// Admission says how new streams are let in.
	Admission Admission
	// Settle is how long a stream has to be quiet before the resources that a reconnecting client still holds, and should
	// not, are removed: its other types' requests have to be answered first, or it would lose a cluster while its old
	// routes still lead there. Default 250 ms.
	Settle time.Duration
	// Await is how long the next push of a type waits at most for the client's answer to the last one. Clients answer at
	// once, but for clusters, which they hold back while any of them warms up. Default 1 s.
	Await  time.Duration
	Logger *slog.Logger
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
}

func (c Config) withDefaults() Config {
	if c.SendTimeout <= 0 {
		c.SendTimeout = 5 * time.Minute
	}
	if c.Generators <= 0 {
		c.Generators = 2 * runtime.GOMAXPROCS(0)
	}
	c.Admission = c.Admission.withDefaults()
	if c.Await <= 0 {
		c.Await = time.Second
	}
	if c.Settle <= 0 {
		c.Settle = 250 * time.Millisecond
	}
	if c.Identify == nil {
		c.Identify = func(context.Context) (string, error) { return "", nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server serves aggregated discovery, delta and state-of-the-world. Each stream has one goroutine that handles its
// requests and its pushes, so that nothing of a client's state is shared; what is pushed while that goroutine is busy is
// merged into one pending push. All methods are safe for concurrent use.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	cfg        Config
	metrics    *metrics
	generators chan struct{}
	arrivals   chan struct{} // of the generators, those for first answers
	door       door
	seats      atomic.Int64 // streams
	stopping   chan struct{}
	started    time.Time

	pages pages

	mu          sync.Mutex
	stopped     bool
	pushes      uint64
	state       State // nil before the first push
	connections map[string]*connection
	serial      uint64
}

// NewServer makes a server that refuses streams until the first Push.
func NewServer(cfg Config) (*Server, error) {
	if cfg.Source == nil {
		return nil, errors.New("xds server: Config.Source is missing: there is nothing to serve")
	}
	cfg = cfg.withDefaults()
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("xds server: registering metrics: %w", err)
	}
	return &Server{
		cfg:         cfg,
		metrics:     m,
		generators:  make(chan struct{}, cfg.Generators),
		arrivals:    make(chan struct{}, max(1, cfg.Generators/2)),
		door:        door{Admission: cfg.Admission},
		stopping:    make(chan struct{}),
		started:     time.Now(),
		connections: map[string]*connection{},
	}, nil
}

// RegisterTo adds the discovery service to a gRPC server. One Server may serve on several.
func (s *Server) RegisterTo(registrar grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(registrar, s)
}

// Push makes a state the newest, and has every client told of what the change means for it. It does not block.
func (s *Server) Push(state State, change Change) { s.PushSince(state, change, time.Now()) }

// PushSince is Push of a change that came about at a known time, from which convergence is measured.
func (s *Server) PushSince(state State, change Change, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	s.pushes++
	version := s.version()
	for _, c := range s.connections {
		c.enqueue(push{state: state, version: version, change: change, since: since, queued: time.Now()})
	}
}

// version names the newest state, for people; s.mu is held.
func (s *Server) version() string {
	return fmt.Sprintf("%s/%d", s.started.UTC().Format(time.RFC3339), s.pushes)
}

// Stop ends all streams, so that the gRPC servers can stop gracefully, and refuses new ones. Clients are told to come
// back.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.stopped = true
		close(s.stopping)
	}
}

// StreamAggregatedResources serves one state-of-the-world stream.
func (s *Server) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.serve(sotwWire{stream})
}

// DeltaAggregatedResources serves one delta stream.
func (s *Server) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(deltaWire{stream, &s.pages})
}
