package sds

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
)

// TLS configures how a certificate authority is verified. The files are read again for each connection.
type TLS = dial.TLS

// CAServer configures the connection to a certificate authority: Plaintext, TLS, TokenFile (read for each call),
// ClusterID and Headers.
type CAServer = dial.Server

// CASource obtains the workload's certificate from a certificate authority with Istio's CreateCertificate API. It
// generates the private key, which is sent only to Envoy. It serves a certificate until the next one is signed and
// verified.
type CASource struct {
	config    CAConfig
	id        string // SPIFFE ID
	metrics   *caMetrics
	timeoutFS fstimeout.TimeoutFS
	// trustWake makes watchTrust check the trust file.
	trustWake chan struct{}
	subscribers

	// renewMu serializes the requests to the CA.
	renewMu sync.Mutex
	key     *keyPair // for the next request

	mu            sync.Mutex
	material      Material
	issued        issuedCert // the last certificate that the CA signed
	nextRotation  time.Time
	problem       error // error of the last request; nil if it succeeded
	renewalLog    renewalLog
	trust         trustFile
	replacedRoots replacedRoots
}

// NewCASource returns a source for config, or an error if config is invalid. It loads the saved certificate.
func NewCASource(config CAConfig) (*CASource, error) {
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	c := &CASource{config: config, id: spiffeID(config), metrics: newCAMetrics(), trustWake: make(chan struct{}, 1)}
	c.timeoutFS.OnResume = func() {
		select {
		case c.trustWake <- struct{}{}:
		default:
		}
	}
	if err := c.metrics.register(config.Metrics); err != nil {
		return nil, fmt.Errorf("sds: registering metrics: %w", err)
	}
	c.restoreSaved()
	return c, nil
}

func spiffeID(c CAConfig) string {
	u := url.URL{Scheme: "spiffe", Host: c.TrustDomain, Path: "/ns/" + c.Namespace + "/sa/" + c.ServiceAccount}
	return u.String()
}

// SPIFFEID returns the identity that the source requests.
func (c *CASource) SPIFFEID() string { return c.id }

// Name returns "CA" and the CA's address.
func (c *CASource) Name() string { return "CA " + c.config.Address }

// Subscribe registers a function that is called after each change.
func (c *CASource) Subscribe(notify func()) { c.add(notify) }

// Current returns the certificate, key and roots that are served now.
func (c *CASource) Current() Material {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.material
}

// NextRotation returns when the next certificate is requested.
func (c *CASource) NextRotation() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nextRotation
}

// Run obtains certificates until ctx ends; then it returns nil.
func (c *CASource) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	if c.config.TrustFile != "" {
		parts.Go(func() { c.watchTrust(ctx) })
	}
	retry := backoff.Backoff{Min: c.config.MinRetry, Max: c.config.MaxRetry}
	for failed := false; ctx.Err() == nil; {
		c.expireReplacedRoots()
		if wait, due := c.timeUntilRenewal(); !due {
			c.pause(ctx, wait)
			continue
		}
		if failed {
			c.metrics.retries.Inc()
		}
		if failed = c.renew(ctx) != nil; failed {
			c.pause(ctx, c.limitRetryDelay(retry.Next()))
			continue
		}
		retry.Reset()
	}
	return nil
}

// maxPause limits each wait of Run. A longer timer would be late after a suspension of the machine or a change of the
// system clock.
const maxPause = time.Minute

func (c *CASource) pause(ctx context.Context, d time.Duration) {
	select {
	case <-c.config.Clock.NewTimer(min(d, maxPause)):
	case <-ctx.Done():
	}
}

// timeUntilRenewal returns the time until the next request, and whether it is due now.
func (c *CASource) timeUntilRenewal() (wait time.Duration, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.material.Leaf == nil {
		return 0, true
	}
	wait = c.nextRotation.Sub(c.config.Clock.Now())
	return wait, wait <= 0
}

// limitRetryDelay limits the retry delay to a twentieth of the certificate's lifetime, but not below MinRetry.
func (c *CASource) limitRetryDelay(wait time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.issued.leaf == nil {
		return wait
	}
	return min(wait, max(c.issued.lifetime()/20, c.config.MinRetry))
}

// renew sends one request to the CA and installs the certificate if it is valid.
func (c *CASource) renew(ctx context.Context) error {
	c.renewMu.Lock()
	defer c.renewMu.Unlock()
	answer, key, err := c.obtainCertificate(ctx)
	if ctx.Err() != nil && err != nil {
		return err
	}
	if err != nil {
		c.recordFailure(err)
		return err
	}
	c.installCertificate(answer, key)
	return nil
}

func (c *CASource) recordFailure(err error) {
	c.metrics.failures.Inc()
	now := c.config.Clock.Now()
	c.mu.Lock()
	c.problem = err
	var left, life time.Duration
	if c.issued.leaf != nil {
		left, life = c.issued.end.Sub(now), c.issued.lifetime()
	}
	level, shouldLog := c.renewalLog.recordFailure(err, left, life, now)
	since := c.renewalLog.since
	c.mu.Unlock()
	if !shouldLog {
		return
	}
	details := []any{"address", c.config.Address, "identity", c.id, "error", err, "failingSince", since}
	if life > 0 {
		details = append(details, "servedCertificateExpiresIn", left.Round(time.Second))
	}
	c.config.Logger.Log(context.Background(), level, "the certificate authority issued no certificate", details...)
}

// installCertificate serves a verified certificate and schedules its renewal.
func (c *CASource) installCertificate(answer issuedCert, key *keyPair) {
	c.key = nil
	now := c.config.Clock.Now()
	c.mu.Lock()
	if old := c.issued; old.leaf != nil && !c.config.DropReplacedRoots {
		c.replacedRoots = c.replacedRoots.add(old.roots, answer.roots, old.leaf.NotAfter)
	}
	c.issued = answer
	c.material.Chain, c.material.Key, c.material.Leaf = answer.chain, key.pem, answer.leaf
	c.material.Roots = c.mergeRoots()
	c.nextRotation = c.rotationTime(answer, now)
	c.problem = nil
	c.renewalLog.reset()
	next := c.nextRotation
	c.mu.Unlock()
	c.config.Logger.Info("received a certificate from the certificate authority", "identity", c.id, "serial", answer.leaf.SerialNumber.Text(16),
		"notAfter", answer.end, "nextRotation", next)
	c.notify()
}

// rotationTime returns when to request the next certificate: the expiry minus the grace period. It is at least a
// twentieth of the lifetime from now, so that the agent does not send requests in a loop.
func (c *CASource) rotationTime(answer issuedCert, now time.Time) time.Time {
	life := answer.lifetime()
	ratio := c.config.GraceRatio + c.config.GraceJitter*(2*rand.Float64()-1)
	at := answer.end.Add(-time.Duration(float64(life) * min(max(ratio, 0), 1)))
	if soonest := now.Add(max(life/20, c.config.MinRetry)); at.Before(soonest) {
		return soonest
	}
	return at
}

// Health reports whether the source has an unexpired certificate.
func (c *CASource) Health() (ok bool, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	problem := ""
	if c.problem != nil {
		problem = fmt.Sprintf("certificate authority %s: %v", c.config.Address, c.problem)
	}
	left := time.Duration(0)
	if c.issued.leaf != nil {
		left = c.issued.end.Sub(c.config.Clock.Now())
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
		return false, fmt.Sprintf("the certificate expired %s ago: %s", -left.Round(time.Second), cmp.Or(problem, "its renewal is in progress"))
	case c.problem == nil:
		return true, problem
	default:
		return true, fmt.Sprintf("the certificate cannot be renewed and expires in %s: %s", left.Round(time.Second), problem)
	}
}
