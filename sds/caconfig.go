package sds

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CAConfig is what a CASource needs.
type CAConfig struct {
	// Address is the certificate authority's, host:port, or several with commas between them, of which the first that answers is.
	Address string
	CAServer

	// TrustDomain, Namespace and ServiceAccount make the SPIFFE ID that is asked for.
	TrustDomain, Namespace, ServiceAccount string
	// Key is the kind of private key; empty is ECDSA P-256.
	Key KeyType
	// PKCS8 has keys encoded by PKCS #8, and not by PKCS #1 or SEC 1.
	PKCS8 bool
	// Saved is a directory where the last certificate may lie, with its key and roots, as a Server writes them to its
	// Output: it is served until the authority has given another. Empty for none.
	Saved string
	// DropReplacedRoots takes a root out of force with the certificate that led to it. Otherwise it stays in force for as
	// long as that certificate would have been valid, since peers have such certificates too.
	DropReplacedRoots bool
	// TTL is how long certificates are asked to be valid; zero is 24 h.
	TTL time.Duration
	// GraceRatio is the part of its life that a certificate has left when it is replaced, and GraceJitter how much that
	// part differs by chance; both zero is 0.5 and 0.01.
	GraceRatio, GraceJitter float64
	// TrustFile holds further roots that peers' certificates may lead to, besides the root that the authority names;
	// it is watched. Empty for none.
	TrustFile string

	// CallTimeout bounds one call; zero is 10 s.
	CallTimeout time.Duration
	// MinRetry and MaxRetry bound the wait between attempts; zero is 100 ms and 60 s.
	MinRetry, MaxRetry time.Duration
	// Debounce is how long TrustFile has to be quiet after a change before it is read; zero is 100 ms.
	Debounce time.Duration

	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Clock is time; nil is the machine's.
	Clock Clock
}

func (c *CAConfig) setDefaults() error {
	for one := range strings.SplitSeq(c.Address, ",") {
		if _, _, err := net.SplitHostPort(strings.TrimSpace(one)); err != nil {
			return fmt.Errorf("sds: the certificate authority's address %q is not host:port: %w", one, err)
		}
	}
	if c.TrustDomain == "" || c.Namespace == "" || c.ServiceAccount == "" {
		return fmt.Errorf("sds: an identity needs a trust domain (%q), a namespace (%q) and a service account (%q)",
			c.TrustDomain, c.Namespace, c.ServiceAccount)
	}
	if c.Key == "" {
		c.Key = ECDSAP256
	}
	if err := c.Key.check(); err != nil {
		return fmt.Errorf("sds: %w", err)
	}
	if c.GraceRatio == 0 && c.GraceJitter == 0 {
		c.GraceRatio, c.GraceJitter = 0.5, 0.01
	}
	if c.GraceRatio < 0 || c.GraceRatio > 1 {
		return fmt.Errorf("sds: the grace period ratio %v is not between 0 and 1", c.GraceRatio)
	}
	c.setDurations()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = SystemClock{}
	}
	return nil
}

func (c *CAConfig) setDurations() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.TTL, 24 * time.Hour},
		{&c.CallTimeout, 10 * time.Second},
		{&c.MinRetry, 100 * time.Millisecond},
		{&c.MaxRetry, time.Minute},
		{&c.Debounce, defaultDebounce},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
}
