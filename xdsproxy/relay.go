// Package xdsproxy relays Envoy's aggregated discovery stream to a control plane: Envoy connects to a unix socket, the
// relay connects to the control plane with TLS and a token, and what the two say to each other passes through as it
// came. The relay looks only at what it needs: types, names, versions, nonces, rejections.
//
// When the control plane goes away, Envoy's stream stays open, and Envoy goes on serving with what it has. The relay knows
// what Envoy has asked for and which version of each resource it has accepted; it asks the next control plane for the same,
// so that only what differs is sent.
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
	"github.com/pilotfish-mesh/pilotfish/internal/rawgrpc"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
	"github.com/prometheus/client_golang/prometheus"
)

// TLS says how a control plane is verified: RootFile ("SYSTEM" or empty for the system's roots), ServerName, and a
// client certificate if there is one. The files are read anew for each connection.
type TLS = dial.TLS

// Server says how a control plane is reached: Plaintext, TLS, TokenFile (read for every stream), ClusterID, Headers.
type Server = dial.Server

// SystemRoots, as TLS.RootFile, stands for the roots of the operating system.
const SystemRoots = dial.SystemRoots

// Config is what a Relay needs.
type Config struct {
	// Socket is the path of the unix socket that Envoy connects to, relative to the working directory or absolute.
	Socket string
	// SocketMode is the mode of the socket; zero is 0600.
	SocketMode fs.FileMode
	// SocketOwner is who the socket is to be of; nil is this process's user.
	SocketOwner *owner.Owner
	// AllowedUIDs are the users that may connect; nil is this process's own, root, and 1337.
	AllowedUIDs []uint32
	// IsEnvoy says whether a process is an Envoy of the agent's; nil holds all for that. Others are applications that
	// speak xDS themselves: their streams stand beside Envoy's and beside each other, and have no part in what is said of
	// Envoy. With Proxyless there is no Envoy, and what is said is said of them.
	IsEnvoy   func(process int32) bool
	Proxyless bool

	// Upstreams are the control plane's addresses, host:port. All that a name stands for are addresses of the control plane,
	// looked up anew whenever a connection is to be made; they are tried in an order of chance. The certificate that a
	// server shows has to be for the name, unless Server says another.
	Upstreams []string
	// Lookup finds the addresses of a name; nil is the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Server says how they are verified, and what the relay shows of itself: TLS or plaintext, token, headers.
	Server

	// KeepaliveInterval and KeepaliveTimeout detect a control plane that has gone without a word; zero is 30 s and 10 s. It is
	// asked sooner when Envoy asks it something, or somebody asks for the relay's condition.
	KeepaliveInterval time.Duration
	KeepaliveTimeout  time.Duration
	// Awake is called when the control plane was heard after a long silence, if it is set: the process is awake then. It must
	// not block.
	Awake func()
	// ConnectTimeout bounds one attempt at one address; zero is 5 s. After Stagger, the next address is tried beside it;
	// zero is 500 ms.
	ConnectTimeout, Stagger time.Duration
	// MinRetry and MaxRetry bound the wait between attempts to connect while nobody answers; zero is 50 ms and 600 ms.
	// A control plane that answers and refuses is left alone for up to MaxRefused; zero is 5 s.
	MinRetry, MaxRetry, MaxRefused time.Duration
	// LongOutage is how long nobody has to answer for the wait to grow further, up to MaxLongRetry: zero is a minute and 5 s.
	// An Envoy that starts ends that.
	LongOutage, MaxLongRetry time.Duration

	// MaxRequest and MaxResponse bound one message of Envoy and one of the control plane, in bytes. Zero is 64 MiB and
	// 256 MiB: a message is held once at most, while it is passed on.
	MaxRequest, MaxResponse int

	// Local are the types of resource that are meant for the agent itself.
	Local []LocalType
	// Rewrite has, by type URL, what changes resources before Envoy gets them.
	Rewrite map[string]Rewriter

	// LastGood keeps what Envoy accepts, for an Envoy that starts while no control plane answers.
	LastGood LastGood

	// LossLimit is how long the control plane may be lost before that makes the proxy unready; zero is for ever.
	LossLimit time.Duration

	Logger *slog.Logger
	// Metrics is where the relay's metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
	// Now is the clock of what is reported; nil is time.Now.
	Now func() time.Time
}

func (c *Config) setDefaults() error {
	switch {
	case c.Socket == "":
		return errors.New("xdsproxy: no socket path given")
	case len(c.Upstreams) == 0:
		return errors.New("xdsproxy: no control plane address given")
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

// Relay is the relay between one Envoy and a control plane. Its methods are safe for concurrent use.
type Relay struct {
	config Config
	log    *slog.Logger
	book   *ledger
	uplink *uplink
	report healthOfApp
	locals map[string]LocalType
	// keeper is nil where nothing is kept; served counts how often Envoy got the last good configuration.
	keeper *keeper
	served atomic.Uint64
	nonces atomic.Uint64
	// broken says that the last response that went on in parts was not completed, and unfit that one was nothing to go on so.
	broken, unfit atomic.Bool
	// credentials are what the uplink proves itself with.
	credentials *credentialWatch
	taps        taps

	mu      sync.Mutex
	current *session // the stream of Envoy in force
	// applied are the versions of what local types were given, by type and name.
	applied map[string]map[string]string
	clients clients
	order   succession

	// streams counts what still runs on behalf of Envoy's streams.
	streams sync.WaitGroup
}

// New checks the configuration. It does nothing yet: Run does.
func New(config Config) (*Relay, error) {
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	locals, err := localTypes(config.Local)
	if err != nil {
		return nil, err
	}
	book := newLedger(config.Now, config.Logger)
	if err := book.metrics.register(config.Metrics, book); err != nil {
		return nil, fmt.Errorf("xdsproxy: registering metrics: %w", err)
	}
	credentials := newCredentialWatch(config)
	if config.Metrics != nil {
		if err := config.Metrics.Register(credentials); err != nil {
			return nil, fmt.Errorf("xdsproxy: registering metrics: %w", err)
		}
	}
	r := &Relay{
		config: config, log: config.Logger, book: book, uplink: newUplink(config, book), locals: locals, credentials: credentials,
		applied: map[string]map[string]string{},
	}
	if err := r.registerLastGood(config.Metrics); err != nil {
		return nil, fmt.Errorf("xdsproxy: registering metrics: %w", err)
	}
	return r, nil
}

// Run serves Envoy until the context ends; then it returns nil.
func (r *Relay) Run(ctx context.Context) error {
	listener, err := uds.ListenFor(r.config.SocketOwner, r.config.Socket, r.config.SocketMode)
	if err != nil {
		return fmt.Errorf("xdsproxy: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := r.server()
	defer r.runKeeper()()

	var parts sync.WaitGroup
	parts.Go(func() { r.uplink.run(ctx) })
	parts.Go(func() { <-ctx.Done(); server.Stop() })
	if !r.config.Plaintext {
		parts.Go(func() { r.credentials.run(ctx) })
	}
	err = server.Serve(uds.Only(listener, r.config.AllowedUIDs, r.log))
	stopped := ctx.Err() != nil
	cancel()
	parts.Wait()
	r.streams.Wait()
	if err != nil && !stopped {
		return fmt.Errorf("xdsproxy: serving %s: %w", r.config.Socket, err)
	}
	return nil
}

func (r *Relay) server() *rawgrpc.Server {
	return rawgrpc.NewServer(map[string]rawgrpc.Handler{
		sotw.method():  r.handler(sotw),
		delta.method(): r.handler(delta),
	}, r.config.MaxRequest, withProcess, r.log)
}

func (r *Relay) handler(v variant) rawgrpc.Handler {
	return func(stream *rawgrpc.ServerStream) error { return r.serve(v, stream) }
}

// Health says whether Envoy's configuration can be relied on, and why not.
func (r *Relay) Health() (ok bool, reason string) {
	c := r.Condition(0)
	return c.OK, c.Reason
}

// Condition says whether the configuration of an Envoy, told by its process id, can be relied on: it has to have got one,
// and must not have rejected the first of any type. For 0, or a process that has had no stream, it is the Envoy whose
// stream is in force. Losing the control plane after that is told in the reason, and does no harm before LossLimit,
// since Envoy goes on with what it has.
func (r *Relay) Condition(process int) health.Condition {
	r.uplink.ask()
	return r.withCredentials(r.book.condition(int32(process), r.config.LossLimit))
}

// ConditionForClients is Condition where the clients are no Envoy but applications, which may be started only when this is
// OK: until one of them asks, a connection to the control plane is enough.
func (r *Relay) ConditionForClients() health.Condition {
	return r.withCredentials(r.book.conditionForClients(r.config.LossLimit))
}

// withCredentials adds what is wrong with the credentials to the reason. It makes nobody unready by itself: what is
// connected serves on.
func (r *Relay) withCredentials(c health.Condition) health.Condition {
	problem := r.credentials.wrong()
	switch {
	case problem == "" || strings.Contains(c.Reason, problem):
	case c.Reason == "":
		c.Reason, c.Remedy = problem, credentialRemedy
	default:
		c.Reason += "; " + problem
	}
	return c
}

// Status reports on the streams and on each type of resource.
func (r *Relay) Status() Status {
	s := r.book.status()
	s.LastGood = r.lastGoodStatus()
	return s
}
