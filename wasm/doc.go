// Package wasm fetches the WebAssembly modules of Envoy's filters. A control plane specifies the URL of a module. This
// package fetches the module over HTTP, HTTPS or from an OCI registry, verifies it and caches it in a directory. It then
// changes the filter so that Envoy loads the cached file. A cached module remains usable when its source is unavailable.
//
// Module sources are untrusted. The size of a module is limited, before and after unpacking. The time of a fetch is
// limited too. The package never connects to the metadata service of a cloud machine.
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

// Config configures Modules.
type Config struct {
	// Dir is the cache directory. Modules are stored as <SHA-256 of the URL and pull secret>/<SHA-256 of the
	// module>.wasm. The directory is created when the first module is requested, and may contain other files.
	Dir string
	// Owner is the user that Envoy runs as, which reads the modules; nil is the user of this process.
	Owner *owner.Owner
	// Expiry is how long an unused module is cached; zero is 24 h. PurgeInterval is the interval at which expired modules
	// are removed; zero is 1 h.
	Expiry, PurgeInterval time.Duration
	// Timeout limits one attempt to fetch a module if the filter does not specify a timeout; zero is 15 s.
	Timeout time.Duration
	// Retries is the number of retries of a failed fetch; negative means none, zero is 5. Backoff is the approximate delay
	// before the first retry; zero is 500 ms. The delay doubles with each retry.
	Retries int
	Backoff time.Duration
	// RetryInterval is the approximate delay before a fetch that failed with all retries starts again, while a filter
	// needs the module; zero is 30 s. The delay doubles each time, up to 20 times RetryInterval.
	RetryInterval time.Duration
	// MaxSize limits the size of a module in bytes, both packed and unpacked; zero is 256 MiB. MaxTotal limits the size of
	// the cache in bytes; zero is four times MaxSize.
	MaxSize, MaxTotal int64
	// Insecure are hosts, with or without a port, whose certificates are not verified and that may serve images without
	// TLS. "*" means all hosts.
	Insecure []string
	// Blocked are networks from which modules are not fetched. Link-local and metadata addresses are always blocked.
	Blocked []netip.Prefix
	// Roots verify the certificates of servers; nil means the system's.
	Roots *x509.CertPool
	// Policy restricts the TLS parameters of the client.
	Policy tlspolicy.Policy

	Logger *slog.Logger
	// Metrics is the registry of the metrics; nil disables them.
	Metrics prometheus.Registerer
	// Now is the clock for the expiry of modules; nil is time.Now.
	Now func() time.Time
}

const defaultMaxSize = 256 << 20

func (c *Config) setDefaults() error {
	if c.Dir == "" {
		return errors.New("wasm: the directory for modules is not set")
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
	orDefault(&c.RetryInterval, 30*time.Second)
	orDefault(&c.MaxSize, defaultMaxSize)
	orDefault(&c.MaxTotal, 4*c.MaxSize)
	return nil
}

func orDefault[T int64 | time.Duration](v *T, value T) {
	if *v <= 0 {
		*v = value
	}
}
