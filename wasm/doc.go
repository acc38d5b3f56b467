// Package wasm fetches the WebAssembly modules of Envoy's filters. A control plane names a module by a URL. This
// package fetches it over HTTP, HTTPS or from an OCI registry, verifies it, caches it in a directory, and makes Envoy
// load it from there. A cached module remains usable when its source is unavailable.
//
// Module sources are untrusted. The size of each module is limited, before and after unpacking, and so is the time of
// each fetch. The metadata service of a cloud machine is never contacted.
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
	// Dir is the cache directory. Modules are stored as <SHA-256 of the URL>/<SHA-256 of the module>.wasm. The
	// directory is created when the first module is requested, and may contain other files.
	Dir string
	// Owner is the user that reads the modules; nil is this process's user.
	Owner *owner.Owner
	// Expiry is how long an unused module is cached; zero is 24 h. PurgeInterval is the interval of removing expired
	// modules; zero is 1 h.
	Expiry, PurgeInterval time.Duration
	// Timeout limits one fetch attempt if the filter has no timeout; zero is 15 s.
	Timeout time.Duration
	// Retries is the number of retries after a failure; negative means none, zero is 5. Backoff is the approximate
	// first delay between them, which is doubled each time; zero is 500 ms.
	Retries int
	Backoff time.Duration
	// RetryInterval is the approximate first delay until a module that could not be fetched is fetched again, while a filter
	// needs it. The delay is doubled each time, up to twenty times its first value. Zero is 30 s.
	RetryInterval time.Duration
	// MaxSize limits the size of a module in bytes, both as served and unpacked; zero is 256 MiB. MaxTotal limits the
	// size of the cache; zero is four times MaxSize.
	MaxSize, MaxTotal int64
	// Insecure are hosts, with or without a port, whose certificates are not verified and that may serve images without
	// TLS; * means all.
	Insecure []string
	// Blocked are further networks from which no module is fetched. Link-local and metadata addresses are always
	// blocked.
	Blocked []netip.Prefix
	// Roots verify the certificates of servers; nil means the system's.
	Roots *x509.CertPool
	// Policy restricts the TLS parameters of the client.
	Policy tlspolicy.Policy

	Logger *slog.Logger
	// Metrics registers the metrics; nil means none are registered.
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
