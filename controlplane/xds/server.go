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

	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
)

// Config configures a Server. Only Source is required.
type Config struct {
	Source Source
	// Identify returns the identity that a stream's peer has proved, from the stream's context. If it returns a gRPC
	// status error, the server refuses the stream. If Identify is nil, no peer has an identity.
	Identify func(ctx context.Context) (string, error)
	// SendTimeout limits how long the server waits until the client reads a response. The server then closes the
	// stream, and the client may reconnect. The default is 5 minutes, because an Envoy that creates thousands of
	// listeners or has a slow link needs that long. After a shorter timeout, it would start over. A blocked send costs
	// little memory, because streams share the resources. The keepalive of the connection detects dead clients.
	SendTimeout time.Duration
	// Generators is the number of clients for which resources are generated at the same time. The default is two per
	// processor.
	Generators int
	// Admission limits new streams.
	Admission Admission
	// Memory limits the memory for the subscriptions of all clients, in bytes; default 512 MiB. Clients without an
	// identity share a quarter of it.
	Memory int64
	// Settle is how long a reconnecting client must send no requests before the server removes its outdated resources.
	// The server must first respond to the requests for the client's other types. Otherwise the client would lose a
	// cluster to which its old routes still refer. Default 250 ms.
	Settle time.Duration
	// Await limits how long the next response of a type waits for the client's ACK of the previous one. Clients send
	// ACKs immediately, except for clusters, which Envoy ACKs when all of them are warmed. Default 1 s.
	Await  time.Duration
	Logger *slog.Logger
	// Registerer registers the metrics; nil registers none.
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
	if c.Memory <= 0 {
		c.Memory = defaultMemory
	}
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

// Server serves ADS in the delta and state-of-the-world (SotW) variants. Each stream has one goroutine that handles its
// requests and pushes, so goroutines do not share the state of a client. Pushes that arrive while that goroutine is
// busy are merged into one pending push. All methods are safe for concurrent use.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	cfg             Config
	metrics         *metrics
	generators      chan struct{}
	firstGenerators chan struct{} // generator slots for first responses
	limiter         streamLimiter
	streams         atomic.Int64 // number of streams
	// unauthenticatedStreams is the number of streams of clients without an identity.
	unauthenticatedStreams atomic.Int64
	// refusals and connects limit the rate of log lines about clients without an identity.
	refusals, connects loglimit.Limiter
	stopping           chan struct{}
	started            time.Time

	pages pageCache
	// The quotas of clients with and without an identity. They are separate, so that clients without an identity cannot
	// use up the memory for the other clients.
	authenticated, unauthenticated *quotas

	mu          sync.Mutex
	stopped     bool
	pushes      uint64
	state       State // nil before the first push
	connections map[string]*connection
	serial      uint64
}

// NewServer returns a server that refuses streams until the first Push.
func NewServer(cfg Config) (*Server, error) {
	if cfg.Source == nil {
		return nil, errors.New("xds server: Config.Source is required")
	}
	cfg = cfg.withDefaults()
	authenticated, unauthenticated := newAccounts(cfg.Memory-cfg.Memory/4), newAccounts(cfg.Memory/4)
	m, err := newMetrics(cfg.Registerer, func() float64 { return float64(authenticated.totalBytes() + unauthenticated.totalBytes()) })
	if err != nil {
		return nil, fmt.Errorf("xds server: registering metrics: %w", err)
	}
	return &Server{
		cfg:             cfg,
		metrics:         m,
		generators:      make(chan struct{}, cfg.Generators),
		firstGenerators: make(chan struct{}, max(1, cfg.Generators/2)),
		limiter:         streamLimiter{Admission: cfg.Admission},
		stopping:        make(chan struct{}),
		started:         time.Now(),
		connections:     map[string]*connection{},
		authenticated:   authenticated,
		unauthenticated: unauthenticated,
	}, nil
}

// RegisterTo registers the discovery service with a gRPC server. One Server may be registered with several.
func (s *Server) RegisterTo(registrar grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(registrar, s)
}

// Push makes state the newest state and enqueues the change for every client. It does not block.
func (s *Server) Push(state State, change Change) { s.PushSince(state, change, time.Now()) }

// PushSince is like Push for a change that was made at changedAt. Convergence metrics measure from that time.
func (s *Server) PushSince(state State, change Change, changedAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	s.pushes++
	version := s.version()
	for _, c := range s.connections {
		c.enqueue(pendingPush{state: state, version: version, change: change, changedAt: changedAt, queued: time.Now()})
	}
}

// version returns a name for the newest state, for display. The caller must have locked s.mu.
func (s *Server) version() string {
	return fmt.Sprintf("%s/%d", s.started.UTC().Format(time.RFC3339), s.pushes)
}

// Stop ends all streams and refuses new ones, so that the gRPC servers can stop gracefully. The streams end with an
// error that makes clients reconnect.
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
	messages, err := newMessageReader(stream.Context())
	if err != nil {
		return err
	}
	return s.serve(sotwStream{stream, messages})
}

// DeltaAggregatedResources serves one delta stream.
func (s *Server) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	messages, err := newMessageReader(stream.Context())
	if err != nil {
		return err
	}
	return s.serve(deltaStream{stream, &s.pages, messages})
}
