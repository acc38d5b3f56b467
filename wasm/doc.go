// Package wasm fetches the WebAssembly modules of Envoy's filters. A control plane names a module by a URL; this package
// fetches it over HTTP, HTTPS or from an OCI registry, checks it, keeps it in a directory, and has Envoy load it from
// there. What was fetched once goes on working when its source is gone.
//
// Modules come from outside: each fetch is bounded in size, before and after unpacking, and in time, and never goes to
// addresses of a machine's metadata service.
package wasm

import (
	"crypto/x509"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Config is what Modules need.
type Config struct {
	// Dir is where modules are kept, as <SHA-256 of the URL>/<SHA-256 of the module>.wasm. It is made when the first one
	// comes, and may hold other things.
	Dir string
	// Owner is who reads the modules; nil is this process's user.
	Owner *owner.Owner
	// Expiry is how long a module is kept that nobody asked for; zero is 24 h. Each PurgeInterval this is looked at; zero
	// is 1 h.
	Expiry, PurgeInterval time.Duration
	// Timeout bounds one attempt to fetch a module whose filter says no other; zero is 15 s.
	Timeout time.Duration
	// Retries is how many attempts follow one that failed; negative for none, zero is 5. Backoff is about the first wait
	// between them, and is doubled each time; zero is 500 ms.
	Retries int
	Backoff time.Duration
	// Again is about how long after all that a module that could not be had is asked for once more, for as long as a filter
	// is without it; it is doubled each time, up to twenty times. Zero is 30 s.
	Again time.Duration
	// MaxSize bounds a module, as it is served and unpacked, in bytes; zero is 256 MiB. MaxTotal bounds all that are kept;
	// zero is four times that.
	MaxSize, MaxTotal int64
	// Insecure are the hosts, with or without a port, that may show any certificate or serve images without TLS; * is all.
	Insecure []string
	// Blocked are networks that no module is fetched from, besides link-local and metadata addresses.
	Blocked []netip.Prefix
	// Roots are what servers are verified against; nil is the system's.
	Roots *x509.CertPool
	// Policy narrows what is offered to servers.
	Policy tlspolicy.Policy

	Logger *slog.Logger
	// Metrics is where the metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
	// Now is the clock by which modules expire; nil is time.Now.
	Now func() time.Time
}

const defaultMaxSize = 256 << 20

func (c *Config) setDefaults() error {
	if c.Dir == "" {
		return errors.New("wasm: no directory given to keep modules in")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Retries == 0 {
		c.Retries = 5
	}
	orDefault(&c.Expiry, 24*time.Hour)
	orDefault(&c.PurgeInterval, time.Hour)
	orDefault(&c.Timeout, 15*time.Second)
	orDefault(&c.Backoff, 500*time.Millisecond)
	orDefault(&c.Again, 30*time.Second)
	orDefault(&c.MaxSize, defaultMaxSize)
	orDefault(&c.MaxTotal, 4*c.MaxSize)
	return nil
}

func orDefault[T int64 | time.Duration](v *T, value T) {
	if *v <= 0 {
		*v = value
	}
}
