package sds

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// TLS says how a certificate authority is verified. The files are read anew for each connection.
type TLS = dial.TLS

// CAServer says how a certificate authority is reached: Plaintext, TLS, TokenFile (read for each call), ClusterID,
// Headers.
type CAServer = dial.Server

// SystemRoots, as TLS.RootFile, stands for the roots of the operating system.
const SystemRoots = dial.SystemRoots

// KeyType is a kind of private key.
type KeyType string

// The kinds of keys.
const (
	ECDSAP256 KeyType = "ECDSA-P256"
	RSA2048   KeyType = "RSA-2048"
)

// CAConfig is what a CASource needs.
type CAConfig struct {
	// Address is the certificate authority's, host:port.
	Address string
	CAServer

	// TrustDomain, Namespace and ServiceAccount make the SPIFFE ID that is asked for.
	TrustDomain, Namespace, ServiceAccount string
	// Key is the kind of private key; empty is ECDSA P-256.
	Key KeyType
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
	if _, _, err := net.SplitHostPort(c.Address); err != nil {
		return fmt.Errorf("sds: the certificate authority's address %q is not host:port: %w", c.Address, err)
	}
	if c.TrustDomain == "" || c.Namespace == "" || c.ServiceAccount == "" {
		return fmt.Errorf("sds: an identity needs a trust domain (%q), a namespace (%q) and a service account (%q)",
			c.TrustDomain, c.Namespace, c.ServiceAccount)
	}
	if c.Key == "" {
		c.Key = ECDSAP256
	}
	if c.Key != ECDSAP256 && c.Key != RSA2048 {
		return fmt.Errorf("sds: the key type %q is neither %s nor %s", c.Key, ECDSAP256, RSA2048)
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

// CASource gets the workload's certificate from a certificate authority that speaks Istio's CreateCertificate API. The
// private key is made here and leaves only to Envoy. A certificate is served until its successor was signed and checked.
type CASource struct {
	config  CAConfig
	id      string // SPIFFE ID
	metrics *caMetrics
	subscribers

	warmOnce sync.Once
	warm     chan struct{} // closed when the attempt of Warm is over; nil without one
	stopWarm context.CancelFunc

	// attempts is held by who is asking the authority.
	attempts sync.Mutex
	key      *keyPair // made for the next request

	mu       sync.Mutex
	material Material
	signed   signed // what the authority gave
	rotation time.Time
	problem  error // of the last attempt
	trust    trustFile
}

// NewCASource checks the configuration.
func NewCASource(config CAConfig) (*CASource, error) {
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	c := &CASource{config: config, id: spiffeID(config), metrics: newCAMetrics()}
	if err := c.metrics.register(config.Metrics); err != nil {
		return nil, fmt.Errorf("sds: registering metrics: %w", err)
	}
	return c, nil
}

func spiffeID(c CAConfig) string {
	u := url.URL{Scheme: "spiffe", Host: c.TrustDomain, Path: "/ns/" + c.Namespace + "/sa/" + c.ServiceAccount}
	return u.String()
}

// SPIFFEID is the identity that is asked for.
func (c *CASource) SPIFFEID() string { return c.id }

// Name is the authority's address.
func (c *CASource) Name() string { return "CA " + c.config.Address }

// Subscribe registers a function to be called after each change.
func (c *CASource) Subscribe(notify func()) { c.add(notify) }

// Current is the certificate in force.
func (c *CASource) Current() Material {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.material
}

// NextRotation is when a successor will be asked for.
func (c *CASource) NextRotation() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rotation
}

// Warm makes the key and asks for the first certificate at once, in the background, so that both are there when Envoy
// asks. Run takes over from there.
func (c *CASource) Warm(ctx context.Context) {
	c.warmOnce.Do(func() {
		ctx, c.stopWarm = context.WithCancel(ctx)
		c.warm = make(chan struct{})
		go func() {
			defer close(c.warm)
			_ = c.attempt(ctx)
		}()
	})
}

// Run gets certificates until the context ends; then it returns nil.
func (c *CASource) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	if c.config.TrustFile != "" {
		parts.Go(func() { c.watchTrust(ctx) })
	}
	c.finishWarm(ctx)
	retry := dial.Backoff{Min: c.config.MinRetry, Max: c.config.MaxRetry}
	for failed := false; ctx.Err() == nil; {
		if wait, due := c.untilDue(); !due {
			c.pause(ctx, wait)
			continue
		}
		if failed {
			c.metrics.retries.Inc()
		}
		if failed = c.attempt(ctx) != nil; failed {
			c.pause(ctx, c.boundedBy(retry.Next()))
			continue
		}
		retry.Reset()
	}
	return nil
}

// finishWarm waits for the attempt that Warm began, or ends it with the context.
func (c *CASource) finishWarm(ctx context.Context) {
	c.warmOnce.Do(func() {}) // from here on there is no more warming
	if c.warm == nil {
		return
	}
	defer c.stopWarm()
	select {
	case <-c.warm:
	case <-ctx.Done():
		c.stopWarm()
		<-c.warm
	}
}

// longestPause bounds a wait, because a machine that was suspended wakes with timers that did not run.
const longestPause = time.Minute

func (c *CASource) pause(ctx context.Context, d time.Duration) {
	select {
	case <-c.config.Clock.After(min(d, longestPause)):
	case <-ctx.Done():
	}
}

// untilDue says whether a certificate has to be asked for now, or in how long.
func (c *CASource) untilDue() (wait time.Duration, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.material.Leaf == nil {
		return 0, true
	}
	wait = c.rotation.Sub(c.config.Clock.Now())
	return wait, wait <= 0
}

// boundedBy keeps retries frequent enough for a certificate that lives only briefly.
func (c *CASource) boundedBy(wait time.Duration) time.Duration {
	leaf := c.Current().Leaf
	if leaf == nil {
		return wait
	}
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	return min(wait, max(life/20, c.config.MinRetry))
}

// attempt asks the authority once, and puts a good answer in force.
func (c *CASource) attempt(ctx context.Context) error {
	c.attempts.Lock()
	defer c.attempts.Unlock()
	answer, key, err := c.sign(ctx)
	if ctx.Err() != nil && err != nil {
		return err
	}
	if err != nil {
		c.failed(err)
		return err
	}
	c.adopt(answer, key)
	return nil
}

func (c *CASource) failed(err error) {
	c.metrics.failures.Inc()
	c.mu.Lock()
	repeated := c.problem != nil && c.problem.Error() == err.Error()
	c.problem = err
	served := c.material.Leaf != nil
	c.mu.Unlock()
	if !repeated { // once a cause, not once an attempt
		c.config.Logger.Warn("no certificate from the certificate authority", "address", c.config.Address, "identity", c.id,
			"error", err, "lastGoodServed", served)
	}
}

// adopt puts a checked certificate in force.
func (c *CASource) adopt(answer signed, key *keyPair) {
	c.key = nil
	now := c.config.Clock.Now()
	c.mu.Lock()
	c.signed = answer
	c.material.Chain, c.material.Key, c.material.Leaf = answer.chain, key.pem, answer.leaf
	c.material.Roots = c.trust.join(answer.roots)
	c.rotation = c.rotationTime(answer, now)
	c.problem = nil
	next := c.rotation
	c.mu.Unlock()
	c.config.Logger.Info("certificate signed", "identity", c.id, "serial", answer.leaf.SerialNumber.Text(16),
		"notAfter", answer.leaf.NotAfter, "nextRotation", next)
	c.notify()
}

// rotationTime is NotAfter less the grace period, but never so soon that the authority would be asked without a pause.
func (c *CASource) rotationTime(answer signed, now time.Time) time.Time {
	life := answer.leaf.NotAfter.Sub(answer.leaf.NotBefore)
	ratio := c.config.GraceRatio + c.config.GraceJitter*(2*rand.Float64()-1)
	at := answer.leaf.NotAfter.Add(-time.Duration(float64(life) * min(max(ratio, 0), 1)))
	if soonest := now.Add(life / 20); at.Before(soonest) {
		return soonest
	}
	return at
}

// Health says whether there is a certificate that has not expired.
func (c *CASource) Health() (ok bool, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	problem := ""
	if c.problem != nil {
		problem = fmt.Sprintf("certificate authority %s: %v", c.config.Address, c.problem)
	}
	left := time.Duration(0)
	if c.material.Leaf != nil {
		left = c.material.Leaf.NotAfter.Sub(c.config.Clock.Now())
	}
	if problem == "" && c.trust.problem != nil {
		problem = fmt.Sprintf("the trust file is not used: %v", c.trust.problem)
	}
	switch {
	case c.material.Leaf == nil && problem == "":
		return false, fmt.Sprintf("waiting for a certificate for %s from the certificate authority %s", c.id, c.config.Address)
	case c.material.Leaf == nil:
		return false, "no certificate yet: " + problem
	case left <= 0:
		return false, fmt.Sprintf("the certificate expired %s ago: %s", -left.Round(time.Second), cmp.Or(problem, "its successor is on its way"))
	case c.problem == nil:
		return true, problem
	default:
		return true, fmt.Sprintf("the certificate cannot be renewed, and expires in %s: %s", left.Round(time.Second), problem)
	}
}
