// Package ca is the mesh's certificate authority. Its root certificate and keys are in the state directory. It issues
// workload certificates through Istio's CreateCertificate API, the control plane's own server certificate, and tokens
// that prove the service account of a workload.
//
// Identities are SPIFFE IDs of Istio's form, spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT.
package ca

import (
	"cmp"
	"crypto/ecdsa"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Default lifetimes.
const (
	DefaultTTL    = 24 * time.Hour
	DefaultMaxTTL = 24 * time.Hour

	// DefaultOverlap is twice the default lifetime of a certificate. Within this time, every agent renews its
	// certificate and receives the new root in the response.
	DefaultOverlap = 2 * DefaultTTL
	// DefaultRotateBefore leaves enough time for users to replace the root certificate files of agents.
	DefaultRotateBefore = 180 * 24 * time.Hour

	rootTTL = 10 * 365 * 24 * time.Hour
	// expiryWarning: the authority logs warnings when the root expires within this time.
	expiryWarning = 90 * 24 * time.Hour
	// backdate is how long before its time of issue a certificate becomes valid, for machines whose clocks are behind
	// the control plane's clock.
	backdate = 2 * time.Minute
)

// DefaultTrustDomain is the trust domain of a new root if Options specify none, as in Istio.
const DefaultTrustDomain = "cluster.local"

// Options configures an authority. The zero value of a field selects its default.
type Options struct {
	// TrustDomain is the trust domain of every identity. Default: the trust domain of the existing root, or
	// DefaultTrustDomain for a new root.
	TrustDomain string
	// MustExist makes Load and Open fail if the store contains no authority. Commands set it if they only use an
	// existing authority.
	MustExist bool
	// TTL is the default lifetime of a workload's certificate. MaxTTL is the maximum lifetime that a request can
	// specify.
	TTL, MaxTTL time.Duration
	// Clock returns the current time; default time.Now.
	Clock func() time.Time
	// PlugIn is an external CA, which signs instead of a root that this package creates; nil if there is none.
	PlugIn PlugIn
	// Overlap is how long an automatic rotation announces a new root before the new root signs certificates.
	// RotateBefore is how long before the root's expiry the automatic rotation begins. A negative value of RotateBefore
	// disables automatic rotation.
	Overlap, RotateBefore time.Duration
	// Issuers lists external issuers whose tokens prove the identity of workloads.
	Issuers []TokenIssuer
	// Tokens verifies the tokens of all other issuers, such as the API server of a cluster; nil refuses them.
	Tokens TokenVerifier
	// TLSPolicy restricts the TLS of servers that use ServerTLS.
	TLSPolicy tlspolicy.Policy
	// Audit records issued and refused certificates, see AuditFile; nil disables the log.
	Audit  *slog.Logger
	Logger *slog.Logger
	// Registerer registers the metrics; nil disables them. Two authorities cannot share a registerer.
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	if o.MaxTTL <= 0 {
		o.MaxTTL = DefaultMaxTTL
	}
	if o.TTL <= 0 {
		o.TTL = DefaultTTL
	}
	o.TTL = min(o.TTL, o.MaxTTL)
	if o.Overlap <= 0 {
		o.Overlap = DefaultOverlap
	}
	if o.RotateBefore == 0 {
		o.RotateBefore = DefaultRotateBefore
	}
	if o.Audit == nil {
		o.Audit = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Authority signs certificates and tokens. It implements istio.v1.auth.IstioCertificateService. Its methods are safe for
// concurrent use.
type Authority struct {
	securityv1.UnimplementedIstioCertificateServiceServer

	opts        Options
	log         *slog.Logger
	store       Store
	trustDomain string

	// signs contains the current issuers and trusted roots.
	signs atomic.Pointer[signing]

	tokenKey *ecdsa.PublicKey
	tokens   jose.Signer

	// denied is the current deny list; nil denies nothing.
	denied atomic.Pointer[DenyList]

	metrics *metrics
	calls   *callLimit
	// refusals limits the log lines about unauthenticated clients.
	refusals loglimit.Limiter
	// warned is the time of the last warning about the root's expiry, in seconds since 1970.
	warned atomic.Int64
}

// trustDomain returns the trust domain of an authority whose root is in the trust domain ofRoot; ofRoot may be "".
func (o Options) trustDomain(ofRoot string) string {
	return cmp.Or(o.TrustDomain, ofRoot, DefaultTrustDomain)
}

// Load opens the authority in a state directory. If there is none, Load creates it. If several processes do this at the
// same time, all of them load the same authority. Load fails if the authority cannot be used: its root is expired, it
// has another trust domain, files are damaged or missing, other users can read the files, or the directory is
// read-only. The error names the directory and the remedy.
func Load(dir string, opts Options) (*Authority, error) {
	if dir == "" {
		return nil, errors.New("the certificate authority needs a state directory, but none is specified")
	}
	opts = opts.withDefaults()
	s := dirStore{dir: dir, log: opts.Logger}
	a, err := Open(s, opts)
	if err != nil {
		return nil, err
	}
	s.warnOfWriters()
	if err := s.removeRetired(); err != nil {
		a.log.Warn("removing the files of a retired root failed", "error", err)
	}
	return a, nil
}

// Open is like Load, for an authority in store.
func Open(store Store, opts Options) (*Authority, error) {
	opts = opts.withDefaults()
	m, err := openStore(store, opts)
	if err != nil {
		return nil, err
	}
	a := &Authority{calls: newCallLimit(), opts: opts, log: opts.Logger, store: store}
	if err := a.open(m); err != nil {
		return nil, locatedError(store, err)
	}
	if _, err := a.Reload(); err != nil {
		return nil, err
	}
	if a.metrics, err = newMetrics(opts.Registerer, func() time.Time { return a.RootNotAfter() }); err != nil {
		return nil, err
	}
	a.warnOfExpiry()
	return a, nil
}

// open checks the root in m, and determines the trust domain and the key that signs tokens.
func (a *Authority) open(m Material) error {
	ofRoot := ""
	if a.opts.PlugIn == nil || len(m.Active.Certificate.Data) > 0 {
		by, err := m.Active.issuer(a.store.Remedy())
		if err != nil {
			return err
		}
		if ofRoot, err = trustDomainOf(by.root); err != nil {
			return err
		}
		if a.opts.PlugIn == nil {
			if err := checkRoot(by.root, a.opts.TrustDomain, a.store.Remedy(), a.now()); err != nil {
				return err
			}
		}
	}
	a.trustDomain = a.opts.trustDomain(ofRoot)
	if err := validateTrustDomain(a.trustDomain); err != nil {
		return err
	}
	key, err := readTokenKey(a.store)
	if err != nil {
		return err
	}
	a.tokenKey = &key.PublicKey
	a.tokens, err = newTokenSigner(key)
	return err
}

// RootPEM returns the root certificates that all members of the mesh must trust: the current root and, during a
// rotation, also the next or the previous root.
func (a *Authority) RootPEM() []byte { return append([]byte(nil), a.signing().rootsPEM...) }

// RootNotAfter returns the expiry of the signing certificate, which limits the lifetime of all issued certificates.
func (a *Authority) RootNotAfter() time.Time { return a.signing().notAfter() }

func (a *Authority) signing() *signing { return a.signs.Load() }

// TrustDomain returns the trust domain of all identities that the authority signs.
func (a *Authority) TrustDomain() string { return a.trustDomain }

func (a *Authority) now() time.Time { return a.opts.Clock() }

// warnOfExpiry logs a warning, at most once a day, if the root expires within expiryWarning. It is called for each
// signature, so a process that runs for months logs it too.
func (a *Authority) warnOfExpiry() {
	now := a.now()
	left := a.RootNotAfter().Sub(now)
	last := a.warned.Load()
	if left > expiryWarning || now.Unix()-last < int64((24*time.Hour).Seconds()) || !a.warned.CompareAndSwap(last, now.Unix()) {
		return
	}
	a.log.Warn("the mesh's root certificate expires soon; all certificates of the mesh expire with it or earlier",
		"notAfter", a.RootNotAfter(), "remaining", left.Round(time.Hour), "location", a.location(),
		"remedy", a.expiryRemedy())
}
