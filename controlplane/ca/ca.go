// Package ca is the mesh's certificate authority: a root that is kept in the state directory, certificates of workloads
// by Istio's CreateCertificate API, the control plane's own server certificate, and the tokens that prove to it which
// service account a workload runs as.
//
// Identities are SPIFFE IDs of Istio's form, spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT.
package ca

import (
	"crypto/ecdsa"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"
	securityv1 "istio.io/api/security/v1alpha1"
)

// How long things live, unless Options say otherwise.
const (
	DefaultTTL    = 24 * time.Hour
	DefaultMaxTTL = 90 * 24 * time.Hour

	// DefaultOverlap is twice the usual life of a certificate: by then every agent has renewed its own, and has got the new
	// root with it.
	DefaultOverlap = 2 * DefaultTTL
	// DefaultRotateBefore leaves time for certificates of the longest life to end.
	DefaultRotateBefore = 2 * DefaultMaxTTL

	rootTTL = 10 * 365 * 24 * time.Hour
	// nearEnd is when an authority begins to warn of its root's end: from here on certificates of the longest TTL
	// would be cut short.
	nearEnd = DefaultMaxTTL
	// backdate lets a certificate be used by machines whose clocks are behind this one's.
	backdate = 2 * time.Minute
)

// DefaultTrustDomain is the trust domain of a new root when Options name none, as in Istio.
const DefaultTrustDomain = "cluster.local"

// Options say how an authority is loaded. The zero value of a field is its default.
type Options struct {
	// TrustDomain of every identity. Default: that of the root in the directory, or DefaultTrustDomain for a new root.
	TrustDomain string
	// MustExist refuses to make a new authority where there is none, for commands that only use one.
	MustExist bool
	// TTL is the life of a workload's certificate when the request names none; MaxTTL the longest that a request gets.
	TTL, MaxTTL time.Duration
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// PlugIn is a directory with the certificate and key of an authority that somebody else made (ca-cert.pem,
	// ca-key.pem, root-cert.pem, cert-chain.pem, as Istio has them), which signs instead of a root of our own.
	PlugIn string
	// Overlap is how long a new root is known before it signs, when roots are rotated by themselves; RotateBefore how long
	// before a root's end that begins. Negative: never by themselves.
	Overlap, RotateBefore time.Duration
	// Issuers are others whose tokens prove who a workload is.
	Issuers []TokenIssuer
	// Audit is told of each certificate that is issued or refused; nil is nobody.
	Audit  *slog.Logger
	Logger *slog.Logger
	// Registerer gets the metrics; nil: there are none. One authority of a process at most may use the same one.
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
	dir         string
	trustDomain string

	// signs is what signs at present.
	signs atomic.Pointer[signing]
	state state

	tokenKey *ecdsa.PublicKey
	tokens   jose.Signer

	metrics *metrics
	// warned is when the root's end was last warned of, in seconds since 1970.
	warned atomic.Int64
}

// Load opens the authority in a state directory, and makes one there on first use. When several processes make one at
// the same time, all of them get the same. An authority that cannot be used (expired root, another trust domain, files
// that are damaged, missing or readable by others, a directory that cannot be written) is refused with an error that
// names the directory and the remedy.
func Load(dir string, opts Options) (*Authority, error) {
	opts = opts.withDefaults()
	s := state{dir: dir, log: opts.Logger}
	m, err := s.open(opts)
	if err != nil {
		return nil, err
	}
	a := &Authority{
		opts: opts, log: opts.Logger, dir: s.path(), trustDomain: m.trustDomain, tokenKey: &m.tokenKey.PublicKey, state: s,
	}
	if _, err := a.Reload(); err != nil {
		return nil, err
	}
	if err := s.removeRetired(); err != nil {
		a.log.Warn("what is left of a retired root cannot be removed", "error", err)
	}
	if a.tokens, err = newTokenSigner(m.tokenKey); err != nil {
		return nil, err
	}
	if a.metrics, err = newMetrics(opts.Registerer, func() time.Time { return a.RootNotAfter() }); err != nil {
		return nil, err
	}
	a.warnOfEnd()
	return a, nil
}

// RootPEM is the root certificates that every member of the mesh has to trust: the one that signs, and while roots are
// being rotated the other one.
func (a *Authority) RootPEM() []byte { return append([]byte(nil), a.signing().rootsPEM...) }

// RootNotAfter is when what signs ends, and every certificate with it.
func (a *Authority) RootNotAfter() time.Time { return a.signing().end() }

func (a *Authority) signing() *signing { return a.signs.Load() }

// TrustDomain is the trust domain of every identity that the authority signs.
func (a *Authority) TrustDomain() string { return a.trustDomain }

func (a *Authority) now() time.Time { return a.opts.Clock() }

// warnOfEnd warns once a day when the root's end is near: there is no warning from a process that runs for months
// otherwise.
func (a *Authority) warnOfEnd() {
	now := a.now()
	left := a.RootNotAfter().Sub(now)
	last := a.warned.Load()
	if left > nearEnd || now.Unix()-last < int64((24*time.Hour).Seconds()) || !a.warned.CompareAndSwap(last, now.Unix()) {
		return
	}
	a.log.Warn("the mesh's root certificate ends soon, and all certificates of the mesh with it",
		"notAfter", a.RootNotAfter(), "left", left.Round(time.Hour), "directory", a.place(),
		"remedy", a.endRemedy())
}
