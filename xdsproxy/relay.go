// Package xdsproxy relays Envoy's aggregated discovery stream (ADS) to a control plane. Envoy connects to a Unix
// socket, and the relay connects to the control plane with TLS and a token. The relay forwards messages without
// decoding the resources. It parses only types, resource names, versions, nonces and NACKs.
//
// When the control plane fails, Envoy's stream stays open, and Envoy continues with its configuration. The relay
// records Envoy's subscriptions and the versions that Envoy has accepted. It sends both to the next control plane,
// which then sends only changes.
package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// TLS configures how the relay verifies a control plane: RootFile ("SYSTEM" or empty selects the system's root
// certificates), ServerName, and an optional client certificate. The relay reads the files again for each connection.
type TLS = dial.TLS

// Server configures the connection to a control plane: Plaintext, TLS, TokenFile (read for each stream), ClusterID,
// Headers.
type Server = dial.Server

// Config configures a Relay.
type Config struct {
	// Socket is the path of the unix socket to which Envoy connects.
	Socket string
	// SocketMode is the file mode of the socket; zero selects 0600.
	SocketMode fs.FileMode
	// SocketOwner is the owner of the socket; nil selects the user of this process.
	SocketOwner *owner.Owner
	// AllowedUIDs are the UIDs of the users that may connect; nil selects the user of this process, root, and 1337.
	AllowedUIDs []uint32
	// Guard checks the secret of each stream; nil disables the check.
	Guard *uds.Guard
	// IsEnvoy reports whether a PID is that of an Envoy of the agent; nil means that every client is Envoy. Any other
	// client is an application that uses xDS itself. Its stream is independent of Envoy's stream, and does not count
	// for status and health.
	IsEnvoy func(process int32) bool
	// Proxyless means that the agent runs no Envoy. All clients are applications, and status and health describe their
	// streams.
	Proxyless bool

	// Upstreams lists the addresses of the control plane, as host:port. For each connection, the relay resolves all
	// hosts again and tries their IP addresses in random order. The server's certificate must match the host, unless
	// Server configures another name.
	Upstreams []string
	// Lookup resolves a host; nil selects the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Server configures TLS, token and headers of the connection.
	Server

	// KeepaliveInterval is the interval of gRPC pings, at least 10 s, and KeepaliveTimeout the time limit for a reply.
	// They detect a control plane that fails without closing the connection. Zero selects 30 s and 10 s.
	KeepaliveInterval time.Duration
	KeepaliveTimeout  time.Duration
	// ConnectTimeout limits one attempt to connect to one address; zero selects 5 s. If an attempt takes longer than
	// Stagger, the relay tries the next address in parallel; zero selects 500 ms.
	ConnectTimeout, Stagger time.Duration
	// MinRetry and MaxRetry limit the backoff while no control plane is reachable; zero selects 50 ms and 600 ms.
	// MaxRefused limits the backoff while control planes accept connections but refuse streams; zero selects 5 s.
	MinRetry, MaxRetry, MaxRefused time.Duration
	// LongOutage is the duration of an outage after which MaxLongRetry limits the backoff; zero selects 1 min and 5 s.
	// A new stream of Envoy resets the backoff.
	LongOutage, MaxLongRetry time.Duration

	// MaxRequest and MaxResponse limit the size of a message in bytes; zero selects 64 MiB and 256 MiB. The relay does
	// not copy a message to forward it.
	MaxRequest, MaxResponse int

	// Local lists the resource types to which the agent itself subscribes.
	Local []LocalType
	// Rewrite contains the rewriters of resources, by type URL.
	Rewrite map[string]Rewriter

	// LastGood configures the storage of the resources that Envoy has accepted. An Envoy that starts while no control
	// plane answers receives them.
	LastGood LastGood

	// LossLimit is the duration of an outage after which the proxy becomes unready; zero means never.
	LossLimit time.Duration

	Logger *slog.Logger
	// Metrics is the registry of the relay's metrics; nil disables them.
	Metrics prometheus.Registerer
	// Now returns the current time for reports; nil selects time.Now.
	Now func() time.Time
}

func (c *Config) setDefaults() error {
	switch {
	case c.Socket == "":
		return errors.New("xdsproxy: the socket path is not set")
	case len(c.Upstreams) == 0:
		return errors.New("xdsproxy: the address of the control plane is not set")
	}
	for _, address := range c.Upstreams {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("xdsproxy: control plane address %q is not host:port: %w", address, err)
		}
	}
	if c.AllowedUIDs == nil {
		c.AllowedUIDs = uds.DefaultUsers()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Lookup == nil {
		c.Lookup = lookupHost
	}
	if c.SocketMode == 0 {
		c.SocketMode = 0o600
	}
	orDefault(&c.KeepaliveInterval, 30*time.Second)
	orDefault(&c.KeepaliveTimeout, 10*time.Second)
	orDefault(&c.ConnectTimeout, 5*time.Second)
	orDefault(&c.Stagger, 500*time.Millisecond)
	orDefault(&c.MinRetry, 50*time.Millisecond)
	orDefault(&c.MaxRetry, 600*time.Millisecond)
	orDefault(&c.MaxRefused, 5*time.Second)
	orDefault(&c.LongOutage, time.Minute)
	orDefault(&c.MaxLongRetry, 5*time.Second)
	c.LastGood.setDefaults()
	orDefault(&c.MaxRequest, 64<<20)
	orDefault(&c.MaxResponse, 256<<20)
	return nil
}

func orDefault[T int | time.Duration](d *T, value T) {
	if *d <= 0 {
		*d = value
	}
}

// Relay relays the stream of one Envoy to a control plane. Its methods are safe for concurrent use.
type Relay struct {
	config                 Config
	log                    *slog.Logger
	tracker                *statusTracker
	upstream               *upstream
	appHealth, degradation reportedHealth
	localTypes             map[string]LocalType
	// store stores the last accepted configuration while Run runs; nil if that is not configured. lastGoodServed counts
	// how often an Envoy received the last accepted configuration.
	store          atomic.Pointer[lastgood.Store]
	lastGoodServed atomic.Uint64
	nonces         atomic.Uint64
	credentials    *credentialWatcher
	taps           taps
	memory         memoryReleaser

	mu            sync.Mutex
	activeSession *session // the session of the Envoy that the relay serves; nil if there is none
	// appliedVersions contains the versions of the resources of local types that the agent has applied, by type URL and
	// name.
	appliedVersions map[string]map[string]string
	clients         appStreams
	handover        envoyHandover

	// streams waits for the goroutines of all sessions.
	streams sync.WaitGroup
}

// New returns a relay, which does nothing before Run. It fails if the configuration is invalid.
func New(config Config) (*Relay, error) {
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	locals, err := indexLocalTypes(config.Local)
	if err != nil {
		return nil, err
	}
	tracker := newStatusTracker(config.Now, config.Logger)
	if err := tracker.metrics.register(config.Metrics, tracker); err != nil {
		return nil, fmt.Errorf("xdsproxy: registering metrics: %w", err)
	}
	credentials := newCredentialWatcher(config)
	if config.Metrics != nil {
		if err := config.Metrics.Register(credentials); err != nil {
			return nil, fmt.Errorf("xdsproxy: registering metrics: %w", err)
		}
	}
	r := &Relay{
		config: config, log: config.Logger, tracker: tracker, upstream: newUpstream(config, tracker), localTypes: locals, credentials: credentials,
		appliedVersions: map[string]map[string]string{},
	}
	if err := r.registerLastGood(config.Metrics); err != nil {
		return nil, fmt.Errorf("xdsproxy: registering metrics: %w", err)
	}
	return r, nil
}

// Run serves Envoy until ctx ends, and then returns nil. It returns an error if it cannot listen on the socket or serve
// it.
func (r *Relay) Run(ctx context.Context) error {
	listener, err := uds.ListenFor(r.config.SocketOwner, r.config.Socket, r.config.SocketMode)
	if err != nil {
		return fmt.Errorf("xdsproxy: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := r.newServer()
	defer r.memory.stop()
	if store := r.openLastGood(); store != nil {
		r.store.Store(store)
		defer store.Close()
	}

	var parts sync.WaitGroup
	parts.Go(func() { r.upstream.run(ctx) })
	parts.Go(func() { <-ctx.Done(); server.Stop() })
	if !r.config.Plaintext {
		parts.Go(func() { r.credentials.run(ctx) })
	}
	err = server.Serve(listener)
	stopped := ctx.Err() != nil
	cancel()
	parts.Wait()
	r.streams.Wait()
	if err != nil && !stopped {
		return fmt.Errorf("xdsproxy: serving %s: %w", r.config.Socket, err)
	}
	return nil
}

const (
	// maxStreams limits the concurrent streams of one connection from Envoy.
	maxStreams = 100
	// windowSize is the flow control window of streams and connections, in bytes. A peer may send this much without
	// waiting for the relay. The windows are static: to adapt them, gRPC would send a ping after each message.
	windowSize = 1 << 20
)

// newServer returns the gRPC server for Envoy.
func (r *Relay) newServer() *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(uds.ServerCredentials(r.config.AllowedUIDs, r.log)),
		grpc.ForceServerCodecV2(wire.Codec{}),
		grpc.MaxRecvMsgSize(r.config.MaxRequest),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(windowSize), grpc.StaticConnWindowSize(windowSize),
		grpc.WaitForHandlers(true),
	)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: wire.Service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: wire.SotWMethod, Handler: r.newHandler(wire.SotW), ServerStreams: true, ClientStreams: true},
			{StreamName: wire.DeltaMethod, Handler: r.newHandler(wire.Delta), ServerStreams: true, ClientStreams: true},
		},
	}, nil)
	return server
}

// newHandler returns a handler for streams. It refuses a client that does not send the secret of Config.Guard.
func (r *Relay) newHandler(v wire.Variant) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		header, _ := metadata.FromIncomingContext(stream.Context())
		if err := r.config.Guard.Check(peerOf(stream.Context()), header.Get(uds.SecretHeader)); err != nil {
			return err
		}
		return r.serve(v, stream)
	}
}

// Health reports whether Condition is OK for the active Envoy. It also returns the condition's reason.
func (r *Relay) Health() (ok bool, reason string) {
	c := r.Condition(0)
	return c.OK, c.Reason
}

// Condition reports whether the Envoy with this PID has usable configuration: it has received a response, and there is
// no type of which it has rejected every response. For PID 0, or a process without a stream, Condition reports on the
// Envoy of the active stream. After the connection to the control plane is lost, the condition remains OK until
// LossLimit has passed, because Envoy continues with its configuration. The reason then describes the loss.
func (r *Relay) Condition(process int) health.Condition {
	return r.addCredentialProblem(r.tracker.condition(int32(process), r.config.LossLimit))
}

// ConditionForClients is like Condition, but for proxyless applications. Applications start only when it is OK. Before
// their first request, a connection to the control plane is therefore sufficient.
func (r *Relay) ConditionForClients() health.Condition {
	return r.addCredentialProblem(r.tracker.conditionForClients(r.config.LossLimit))
}

// addCredentialProblem adds a problem of the credentials to the condition's reason. It does not change OK, because a
// connection that is open still works.
func (r *Relay) addCredentialProblem(c health.Condition) health.Condition {
	problem := r.credentials.currentProblem()
	switch {
	case problem == "" || strings.Contains(c.Reason, problem):
	case c.Reason == "":
		c.Reason, c.Remedy = problem, credentialRemedy
	default:
		c.Reason += "; " + problem
	}
	return c
}

// Status returns the state of the streams and of each resource type.
func (r *Relay) Status() Status {
	s := r.tracker.status()
	s.LastGood = r.lastGoodStatus()
	return s
}
