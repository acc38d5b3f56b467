package sds

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"
)

// clockSkew is how far the authority's clock may be ahead of ours.
const clockSkew = 2 * time.Minute

// signed is an authority's answer that was found good.
type signed struct {
	leaf  *x509.Certificate
	chain []byte // leaf and intermediates
	roots []*x509.Certificate
	since time.Time // when it came, or from when on it is valid; authorities date certificates back
	end   time.Time // when the first certificate of the chain ends, which may be an authority's
}

// life is how long the certificate can be used with its chain.
func (s signed) life() time.Duration { return s.end.Sub(s.since) }

// sign makes a key, unless one is left from a failed attempt, asks the authority, and checks its answer.
func (c *CASource) sign(ctx context.Context) (signed, *keyPair, error) {
	if c.key == nil {
		key, err := newKeyPair(c.config.Key, c.config.PKCS8)
		if err != nil {
			return signed{}, nil, err
		}
		c.key = key
	}
	csr, err := c.key.csr(c.id)
	if err != nil {
		return signed{}, nil, err
	}
	began := c.config.Clock.Now()
	c.metrics.requests.Inc()
	answer, err := c.call(ctx, csr)
	c.metrics.latency.Add(float64(c.config.Clock.Now().Sub(began).Milliseconds()))
	if err != nil {
		return signed{}, nil, err
	}
	good, err := c.check(answer)
	if err != nil {
		return signed{}, nil, fmt.Errorf("its answer is not used: %w", err)
	}
	return good, c.key, nil
}

// patience bounds one call, so that an authority that says nothing does not take much of a short life.
func (c *CASource) patience() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.signed.leaf == nil {
		return c.config.CallTimeout
	}
	return min(c.config.CallTimeout, max(c.signed.life()/10, time.Second))
}

// call makes one call over a connection of its own: there are hours between two.
func (c *CASource) call(ctx context.Context, csr string) ([]string, error) {
	patience := c.patience()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	header, err := c.config.CAServer.Header()
	if err != nil {
		return nil, err
	}
	conn, err := c.config.CAServer.Connect(ctx, c.config.Address, patience)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(
		metadata.NewOutgoingContext(ctx, header),
		&securityv1.IstioCertificateRequest{Csr: csr, ValidityDuration: int64(c.config.TTL.Seconds())})
	if err != nil {
		s := status.Convert(err)
		return nil, fmt.Errorf("%s: %s", s.Code(), s.Message())
	}
	return answer.CertChain, nil
}

// check verifies an answer: the certificate is for our key and our identity and no other, is valid now, and leads to
// a root.
func (c *CASource) check(answer []string) (signed, error) {
	own, roots, err := takeApart(answer)
	if err != nil {
		return signed{}, err
	}
	if key, ok := c.key.signer.Public().(publicKey); !ok || !key.Equal(own[0].PublicKey) {
		return signed{}, errors.New("the certificate is for another key than the one it was asked for")
	}
	return c.checkOwn(own, roots)
}

// checkOwn verifies that a chain is the workload's own, is valid now, and leads to a root.
func (c *CASource) checkOwn(own, roots []*x509.Certificate) (signed, error) {
	leaf := own[0]
	if err := c.checkIdentity(leaf); err != nil {
		return signed{}, err
	}
	if err := checkAuthorities(roots); err != nil {
		return signed{}, err
	}
	now := c.config.Clock.Now()
	if now.After(leaf.NotAfter) {
		return signed{}, fmt.Errorf("the certificate expired at %s, and here it is %s: look at the clocks, if it is a new one", leaf.NotAfter, now)
	}
	if leaf.NotBefore.After(now.Add(clockSkew)) {
		return signed{}, fmt.Errorf("the certificate is not valid before %s, and here it is %s: look at the clocks", leaf.NotBefore, now)
	}
	return c.checkChain(own, roots, now)
}

// takeApart gives the workload's chain and the roots of an answer. Its last entry is the root, or several while the
// authority's roots are being replaced; an answer of one entry has none but those that are signed by themselves.
func takeApart(answer []string) (own, roots []*x509.Certificate, err error) {
	if last := len(answer) - 1; last > 0 {
		if roots, err = parseCertificates([]byte(answer[last])); err != nil {
			return nil, nil, fmt.Errorf("the root: %w", err)
		}
		answer = answer[:last]
	}
	all, err := parseCertificates([]byte(strings.Join(answer, "\n")))
	if err != nil {
		return nil, nil, err
	}
	own = all[:1]
	for _, cert := range all[1:] {
		if bytes.Equal(cert.RawIssuer, cert.RawSubject) {
			roots = append(roots, cert)
		} else {
			own = append(own, cert)
		}
	}
	return own, roots, nil
}

func (c *CASource) checkIdentity(leaf *x509.Certificate) error {
	if leaf.IsCA {
		return errors.New("the certificate is one of an authority, not of a workload")
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != c.id {
		return fmt.Errorf("the certificate is for %v, not for %s", leaf.URIs, c.id)
	}
	return nil
}

// checkChain holds the chain against the authority's roots and those of the trust file.
func (c *CASource) checkChain(own, roots []*x509.Certificate, now time.Time) (signed, error) {
	answer := signed{leaf: own[0], roots: roots, chain: encodeCertificates(own), since: later(now, own[0].NotBefore)}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		CurrentTime: later(now, answer.leaf.NotBefore), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, cert := range own[1:] {
		options.Intermediates.AddCert(cert)
	}
	trusted := append(c.trusted(), answer.roots...)
	if len(trusted) == 0 {
		return signed{}, errors.New("the answer has no root certificate, and there is no trust file")
	}
	for _, root := range trusted {
		options.Roots.AddCert(root)
	}
	chains, err := answer.leaf.Verify(options)
	if err != nil {
		return signed{}, fmt.Errorf("the certificate does not lead to a root: %w", err)
	}
	for _, chain := range chains {
		answer.end = later(answer.end, endOfChain(chain))
	}
	return answer, nil
}

func endOfChain(chain []*x509.Certificate) time.Time {
	end := chain[0].NotAfter
	for _, cert := range chain[1:] {
		if cert.NotAfter.Before(end) {
			end = cert.NotAfter
		}
	}
	return end
}

// checkAuthorities refuses roots to which no certificate can lead: Envoy would let nobody in.
func checkAuthorities(roots []*x509.Certificate) error {
	for _, root := range roots {
		if !isAuthority(root) {
			return fmt.Errorf("the root %q is not the certificate of an authority", root.Subject)
		}
	}
	return nil
}

func isAuthority(c *x509.Certificate) bool {
	if c.BasicConstraintsValid {
		return c.IsCA
	}
	return c.Version < 3
}

// checkRoots refuses roots that an authority has signed for somebody else than an authority: most likely one stands where
// its authority's should. Envoy would trust it, and no other that the authority has signed. One that is signed by itself is
// meant to stand alone.
func checkRoots(roots []*x509.Certificate) error {
	for _, root := range roots {
		if !isAuthority(root) && !bytes.Equal(root.RawIssuer, root.RawSubject) {
			return fmt.Errorf("the root %q with the serial number %x is not the certificate of an authority, so that no other leads to it: "+
				"put that of the authority %q in its place, which has signed it", root.Subject, root.SerialNumber, root.Issuer)
		}
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// caMetrics are named as Istio's agent names them.
type caMetrics struct {
	requests, failures, retries, latency prometheus.Counter
}

func newCAMetrics() *caMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"request_type": "csr"}})
	}
	return &caMetrics{
		requests: counter("istio_agent_num_outgoing_requests", "Requests to the certificate authority."),
		failures: counter("istio_agent_num_failed_outgoing_requests", "Requests to the certificate authority that failed, or whose answer was not good."),
		retries:  counter("istio_agent_num_outgoing_retries", "Requests to the certificate authority that were made again after a failure."),
		latency:  counter("istio_agent_outgoing_latency", "Milliseconds spent waiting for the certificate authority."),
	}
}

func (m *caMetrics) register(registerer prometheus.Registerer) error {
	return registerAll(registerer, m.requests, m.failures, m.retries, m.latency)
}
