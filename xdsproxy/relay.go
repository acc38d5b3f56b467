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
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// Relay relays the stream of one Envoy to a control plane. Its methods are safe for concurrent use.
type Relay struct {
	config                 Config
	log                    *slog.Logger
	tracker                *statusTracker
	upstream               *upstream
	appHealth, degradation reportedHealth
	localTypes             map[string]LocalType
	// store stores the last accepted configuration while Run runs; nil if no directory is configured. lastGoodServed
	// counts how often an Envoy received the last accepted configuration.
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
