package sds

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CAConfig configures a CASource.
type CAConfig struct {
	// Address is the CA's host:port, or a comma-separated list of CAs. Each call connects to the first CA that is
	// reachable.
	Address string
	CAServer

	// TrustDomain, Namespace and ServiceAccount form the requested SPIFFE ID.
	TrustDomain, Namespace, ServiceAccount string
	// Signer is sent as CertSigner in the request's metadata: the name of the signer, where the CA has several. Empty: none
	// is sent.
	Signer string
	// Key is the type of the private key; default ECDSA P-256.
	Key KeyType
	// PKCS8 encodes keys as PKCS #8 instead of PKCS #1 or SEC 1.
	PKCS8 bool
	// Saved is the directory to which an earlier Server wrote its certificate, key and roots (see Output). The source
	// serves that certificate until the CA signs a new one. Empty: no saved certificate.
	Saved string
	// DropReplacedRoots removes a root as soon as the CA no longer returns it. Otherwise the source trusts the root
	// until the workload's last certificate under it expires, because peers may still use such certificates.
	DropReplacedRoots bool
	// TTL is the requested validity of certificates; default 24 h.
	TTL time.Duration
	// GraceRatio is the fraction of the lifetime that remains when a certificate is renewed. GraceJitter is the maximum
	// random deviation of GraceRatio. If both are zero, the defaults 0.5 and 0.01 apply.
	GraceRatio, GraceJitter float64
	// TrustFile is a PEM file with additional roots for verifying peers. The source reloads it after changes. Empty:
	// none.
	TrustFile string

	// CallTimeout limits one call to the CA; default 10 s.
	CallTimeout time.Duration
	// MinRetry and MaxRetry limit the retry delay; default 100 ms and 60 s.
	MinRetry, MaxRetry time.Duration
	// Debounce is how long TrustFile must be unchanged before it is read; default 100 ms.
	Debounce time.Duration

	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Clock defaults to the system clock.
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
		c.Clock = systemClock{}
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
