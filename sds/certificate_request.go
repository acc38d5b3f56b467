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
	"google.golang.org/protobuf/types/known/structpb"
	securityv1 "istio.io/api/security/v1alpha1"
)

// clockSkew is how far the CA's clock may be ahead of the local clock.
const clockSkew = 2 * time.Minute

// issuedCert is the verified content of a CA's response.
type issuedCert struct {
	leaf  *x509.Certificate
	chain []byte // leaf and intermediates
	roots []*x509.Certificate
	start time.Time // time of the response, or NotBefore if that is later; CAs backdate certificates
	end   time.Time // earliest expiry in the chain, possibly of a CA certificate
}

// lifetime returns how long the certificate is usable with its chain.
func (s issuedCert) lifetime() time.Duration { return s.end.Sub(s.start) }

// obtainCertificate requests a certificate and verifies the response. After a failed request it uses the same key
// again.
func (c *CASource) obtainCertificate(ctx context.Context) (issuedCert, *keyPair, error) {
	if c.key == nil {
		key, err := newKeyPair(c.config.Key, c.config.PKCS8)
		if err != nil {
			return issuedCert{}, nil, err
		}
		c.key = key
	}
	csr, err := c.key.csr(c.id)
	if err != nil {
		return issuedCert{}, nil, err
	}
	began := c.config.Clock.Now()
	c.metrics.requests.Inc()
	answer, err := c.callCA(ctx, csr)
	c.metrics.latency.Add(float64(c.config.Clock.Now().Sub(began).Milliseconds()))
	if err != nil {
		return issuedCert{}, nil, err
	}
	good, err := c.checkResponse(answer)
	if err != nil {
		return issuedCert{}, nil, fmt.Errorf("the response is rejected: %w", err)
	}
	return good, c.key, nil
}

// callTimeout returns the timeout of one call. It is at most a tenth of the certificate's lifetime (but at least 1 s),
// so that an unresponsive CA does not delay the retries.
func (c *CASource) callTimeout() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.issued.leaf == nil {
		return c.config.CallTimeout
	}
	return min(c.config.CallTimeout, max(c.issued.lifetime()/10, time.Second))
}

// callCA sends one request. It opens a new connection each time, because calls are hours apart.
func (c *CASource) callCA(ctx context.Context, csr string) ([]string, error) {
	timeout := c.callTimeout()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	header, err := c.config.CAServer.Header()
	if err != nil {
		return nil, err
	}
	conn, err := c.config.CAServer.Connect(ctx, c.config.Address, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(
		metadata.NewOutgoingContext(ctx, header),
		&securityv1.IstioCertificateRequest{Csr: csr, ValidityDuration: int64(c.config.TTL.Seconds()), Metadata: c.requestMetadata()})
	if err != nil {
		s := status.Convert(err)
		return nil, fmt.Errorf("%s: %s", s.Code(), s.Message())
	}
	return answer.CertChain, nil
}

// requestMetadata returns the metadata of a request, or nil if no signer is configured. Istio's CA defines the entry's
// name.
func (c *CASource) requestMetadata() *structpb.Struct {
	if c.config.Signer == "" {
		return nil
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"CertSigner": structpb.NewStringValue(c.config.Signer)}}
}

// checkResponse verifies a response: the certificate has the requested key and identity, is currently valid, and chains
// to a root.
func (c *CASource) checkResponse(answer []string) (issuedCert, error) {
	own, roots, err := splitResponse(answer)
	if err != nil {
		return issuedCert{}, err
	}
	if key, ok := c.key.signer.Public().(publicKey); !ok || !key.Equal(own[0].PublicKey) {
		return issuedCert{}, errors.New("the certificate is not for the requested key")
	}
	return c.checkWorkloadChain(own, roots)
}

// checkWorkloadChain verifies that a chain has the workload's identity, is currently valid, and leads to a root.
func (c *CASource) checkWorkloadChain(own, roots []*x509.Certificate) (issuedCert, error) {
	leaf := own[0]
	if err := c.checkIdentity(leaf); err != nil {
		return issuedCert{}, err
	}
	if err := checkCAs(roots); err != nil {
		return issuedCert{}, err
	}
	now := c.config.Clock.Now()
	if now.After(leaf.NotAfter) {
		return issuedCert{}, fmt.Errorf("the certificate expired at %s, and the local time is %s: check the clocks if the certificate is new", leaf.NotAfter, now)
	}
	if leaf.NotBefore.After(now.Add(clockSkew)) {
		return issuedCert{}, fmt.Errorf("the certificate is not valid before %s, and the local time is %s: check the clocks", leaf.NotBefore, now)
	}
	return c.checkChain(own, roots, now)
}

// splitResponse returns the workload's chain and the roots of a response. The last entry contains the root, or several
// during a root rotation. If there is only one entry, the roots are its self-signed certificates.
func splitResponse(answer []string) (own, roots []*x509.Certificate, err error) {
	if last := len(answer) - 1; last > 0 {
		if roots, err = parseCertificates([]byte(answer[last])); err != nil {
			return nil, nil, fmt.Errorf("parsing the root certificates in the response: %w", err)
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
		return errors.New("the certificate is a CA certificate, not a workload certificate")
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != c.id {
		return fmt.Errorf("the certificate is for %v, not for %s", leaf.URIs, c.id)
	}
	return nil
}

// checkChain verifies the chain against the CA's roots and the trust file.
func (c *CASource) checkChain(own, roots []*x509.Certificate, now time.Time) (issuedCert, error) {
	answer := issuedCert{leaf: own[0], roots: roots, chain: encodeCertificates(own), start: maxTime(now, own[0].NotBefore)}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		CurrentTime: maxTime(now, answer.leaf.NotBefore), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, cert := range own[1:] {
		options.Intermediates.AddCert(cert)
	}
	trusted := append(c.loadTrustedRoots(), answer.roots...)
	if len(trusted) == 0 {
		return issuedCert{}, errors.New("the response has no root certificate, and there is no trust file")
	}
	for _, root := range trusted {
		options.Roots.AddCert(root)
	}
	chains, err := answer.leaf.Verify(options)
	if err != nil {
		return issuedCert{}, fmt.Errorf("the certificate does not chain to a root: %w", err)
	}
	for _, chain := range chains {
		answer.end = maxTime(answer.end, chainExpiry(chain))
	}
	return answer, nil
}

func chainExpiry(chain []*x509.Certificate) time.Time {
	end := chain[0].NotAfter
	for _, cert := range chain[1:] {
		if cert.NotAfter.Before(end) {
			end = cert.NotAfter
		}
	}
	return end
}

// checkCAs returns an error for a root that is not a CA certificate: Envoy would reject every peer if its roots
// contained such a certificate.
func checkCAs(roots []*x509.Certificate) error {
	for _, root := range roots {
		if !isCA(root) {
			return fmt.Errorf("the root %q is not a CA certificate", root.Subject)
		}
	}
	return nil
}

func isCA(c *x509.Certificate) bool {
	if c.BasicConstraintsValid {
		return c.IsCA
	}
	return c.Version < 3
}

// checkRoots returns an error for a root that is neither a CA certificate nor self-signed. Probably a workload
// certificate is configured instead of the certificate of its CA; Envoy would then accept only this one peer
// certificate. Self-signed certificates are accepted, because the user may want to trust exactly these.
func checkRoots(roots []*x509.Certificate) error {
	for _, root := range roots {
		if !isCA(root) && !bytes.Equal(root.RawIssuer, root.RawSubject) {
			return fmt.Errorf("the root %q with serial number %x is not a CA certificate, so no certificate chains to it: "+
				"replace it with the certificate of %q, which has signed it", root.Subject, root.SerialNumber, root.Issuer)
		}
	}
	return nil
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// caMetrics contains the counters of requests to the CA, with the metric names of Istio's agent.
type caMetrics struct {
	requests, failures, retries, latency prometheus.Counter
}

func newCAMetrics() *caMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"request_type": "csr"}})
	}
	return &caMetrics{
		requests: counter("istio_agent_num_outgoing_requests", "Requests to the certificate authority."),
		failures: counter("istio_agent_num_failed_outgoing_requests", "Requests to the certificate authority that failed or had an invalid response."),
		retries:  counter("istio_agent_num_outgoing_retries", "Retries of requests to the certificate authority."),
		latency:  counter("istio_agent_outgoing_latency", "Milliseconds spent waiting for the certificate authority."),
	}
}

func (m *caMetrics) register(registerer prometheus.Registerer) error {
	return registerAll(registerer, m.requests, m.failures, m.retries, m.latency)
}
