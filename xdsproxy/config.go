package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
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
