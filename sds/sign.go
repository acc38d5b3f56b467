package sds

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"
)

// clockSkew is how far the authority's clock may be ahead of ours.
const clockSkew = 2 * time.Minute

// keyPair is a private key, as a signer and as Envoy wants it.
type keyPair struct {
	signer crypto.Signer
	pem    PrivateKey
}

func newKeyPair(kind KeyType) (*keyPair, error) {
	var signer crypto.Signer
	var err error
	if kind == RSA2048 {
		signer, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, fmt.Errorf("making a private key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, fmt.Errorf("encoding the private key: %w", err)
	}
	return &keyPair{signer: signer, pem: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}, nil
}

// csr is a request for a certificate of the key with the SPIFFE ID as its only name, as Istio's authorities expect it.
func (k *keyPair) csr(id string) (string, error) {
	uri, err := url.Parse(id)
	if err != nil {
		return "", fmt.Errorf("the identity %q: %w", id, err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{uri}}, k.signer)
	if err != nil {
		return "", fmt.Errorf("making a CSR: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}

// signed is an authority's answer that was found good.
type signed struct {
	leaf  *x509.Certificate
	chain []byte // leaf and intermediates
	roots []*x509.Certificate
}

// sign makes a key, unless one is left from a failed attempt, asks the authority, and checks its answer.
func (c *CASource) sign(ctx context.Context) (signed, *keyPair, error) {
	if c.key == nil {
		key, err := newKeyPair(c.config.Key)
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

// call makes one call over a connection of its own: there are hours between two.
func (c *CASource) call(ctx context.Context, csr string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.CallTimeout)
	defer cancel()
	header, err := c.config.CAServer.Header()
	if err != nil {
		return nil, err
	}
	conn, err := c.config.CAServer.Connect(ctx, c.config.Address, c.config.CallTimeout)
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
	certs, err := parseCertificates([]byte(strings.Join(answer, "\n")))
	if err != nil {
		return signed{}, err
	}
	leaf := certs[0]
	if key, ok := c.key.signer.Public().(publicKey); !ok || !key.Equal(leaf.PublicKey) {
		return signed{}, errors.New("the certificate is for another key than the one it was asked for")
	}
	if err := c.checkIdentity(leaf); err != nil {
		return signed{}, err
	}
	now := c.config.Clock.Now()
	if now.After(leaf.NotAfter) {
		return signed{}, fmt.Errorf("the certificate expired at %s", leaf.NotAfter)
	}
	if leaf.NotBefore.After(now.Add(clockSkew)) {
		return signed{}, fmt.Errorf("the certificate is not valid before %s, and here it is %s: look at the clocks", leaf.NotBefore, now)
	}
	return c.checkChain(certs, now)
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

// checkChain finds the root: the last certificate of the answer, or one of the trust file when only the workload's own
// certificate came.
func (c *CASource) checkChain(certs []*x509.Certificate, now time.Time) (signed, error) {
	answer := signed{leaf: certs[0]}
	own := certs
	if last := len(certs) - 1; last > 0 {
		answer.roots = certs[last:]
		own = certs[:last]
	}
	answer.chain = encodeCertificates(own)
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
	if _, err := answer.leaf.Verify(options); err != nil {
		return signed{}, fmt.Errorf("the certificate does not lead to a root: %w", err)
	}
	return answer, nil
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
