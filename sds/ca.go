package sds

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/disks"
)

// TLS says how a certificate authority is verified. The files are read anew for each connection.
type TLS = dial.TLS

// CAServer says how a certificate authority is reached: Plaintext, TLS, TokenFile (read for each call), ClusterID,
// Headers.
type CAServer = dial.Server

// SystemRoots, as TLS.RootFile, stands for the roots of the operating system.
const SystemRoots = dial.SystemRoots

// CASource gets the workload's certificate from a certificate authority that speaks Istio's CreateCertificate API. The
// private key is made here and leaves only to Envoy. A certificate is served until its successor was signed and checked.
type CASource struct {
	config  CAConfig
	id      string // SPIFFE ID
	metrics *caMetrics
	disks   disks.Disks
	// trustWake has the trust file followed anew.
	trustWake chan struct{}
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
	alarm    alarm
	trust    trustFile
	replaced replaced
}

// NewCASource checks the configuration.
func NewCASource(config CAConfig) (*CASource, error) {
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	c := &CASource{config: config, id: spiffeID(config), metrics: newCAMetrics(), trustWake: make(chan struct{}, 1)}
	c.disks.Resumed = func() {
		select {
		case c.trustWake <- struct{}{}:
		default:
		}
	}
	if err := c.metrics.register(config.Metrics); err != nil {
		return nil, fmt.Errorf("sds: registering metrics: %w", err)
	}
	c.restore()
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
		c.dropReplaced()
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
	if system, ok := c.config.Clock.(SystemClock); ok {
		system.Sleep(ctx, d)
		return
	}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.signed.leaf == nil {
		return wait
	}
	return min(wait, max(c.signed.life()/20, c.config.MinRetry))
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
	now := c.config.Clock.Now()
	c.mu.Lock()
	c.problem = err
	var left, life time.Duration
	if c.signed.leaf != nil {
		left, life = c.signed.end.Sub(now), c.signed.life()
	}
	level, tell := c.alarm.failed(err, left, life, now)
	since := c.alarm.since
	c.mu.Unlock()
	if !tell {
		return
	}
	details := []any{"address", c.config.Address, "identity", c.id, "error", err, "failingSince", since}
	if life > 0 {
		details = append(details, "servedCertificateExpiresIn", left.Round(time.Second))
	}
	c.config.Logger.Log(context.Background(), level, "no certificate from the certificate authority", details...)
}

// adopt puts a checked certificate in force.
func (c *CASource) adopt(answer signed, key *keyPair) {
	c.key = nil
	now := c.config.Clock.Now()
	c.mu.Lock()
	if old := c.signed; old.leaf != nil && !c.config.DropReplacedRoots {
		c.replaced = c.replaced.add(old.roots, answer.roots, old.leaf.NotAfter)
	}
	c.signed = answer
	c.material.Chain, c.material.Key, c.material.Leaf = answer.chain, key.pem, answer.leaf
	c.material.Roots = c.joinRoots()
	c.rotation = c.rotationTime(answer, now)
	c.problem = nil
	c.alarm.reset()
	next := c.rotation
	c.mu.Unlock()
	c.config.Logger.Info("certificate signed", "identity", c.id, "serial", answer.leaf.SerialNumber.Text(16),
		"notAfter", answer.end, "nextRotation", next)
	c.notify()
}

// rotationTime is the end less the grace period, but never so soon that the authority would be asked without a pause.
func (c *CASource) rotationTime(answer signed, now time.Time) time.Time {
	life := answer.life()
	ratio := c.config.GraceRatio + c.config.GraceJitter*(2*rand.Float64()-1)
	at := answer.end.Add(-time.Duration(float64(life) * min(max(ratio, 0), 1)))
	if soonest := now.Add(max(life/20, c.config.MinRetry)); at.Before(soonest) {
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
	if c.signed.leaf != nil {
		left = c.signed.end.Sub(c.config.Clock.Now())
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
