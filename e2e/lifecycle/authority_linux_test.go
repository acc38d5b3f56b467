package lifecycle

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// The certificates of these tests live long enough for an outage, and are renewed so often that each outage falls on
// several renewals.
var shortLived = map[string]string{"SECRET_TTL": "40s", "SECRET_GRACE_PERIOD_RATIO": "0.95", "SECRET_GRACE_PERIOD_RATIO_JITTER": "0.01"}

// certificate is the agent's report of the certificate that it serves.
type certificate struct {
	Name      string    `json:"name"`
	Serial    string    `json:"serial"`
	Issuer    string    `json:"issuer"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

func (p *pod) certificate(t testing.TB) (c certificate, reason string, err error) {
	out, err := p.command(t, "cert", "-o", "json").Output()
	if err != nil {
		return c, "", err
	}
	var report struct {
		Reason       string        `json:"reason"`
		Certificates []certificate `json:"certificates"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return c, "", err
	}
	if len(report.Certificates) == 0 || report.Certificates[0].Name != "default" {
		return c, report.Reason, fmt.Errorf("there is no identity: %s", out)
	}
	return report.Certificates[0], report.Reason, nil
}

func (m *mesh) certificates() map[*pod]certificate {
	m.t.Helper()
	held := map[*pod]certificate{}
	for _, p := range []*pod{m.pods[0], m.client} {
		c, _, err := p.certificate(m.t)
		if err != nil {
			m.t.Fatal(err)
		}
		held[p] = c
	}
	return held
}

// waitRenewalFails waits until all agents report that their certificate cannot be renewed.
func (m *mesh) waitRenewalFails() {
	m.t.Helper()
	for _, p := range []*pod{m.pods[0], m.client} {
		testenv.Eventually(m.t, p.name+" says that its certificate cannot be renewed", func() error {
			_, reason, err := p.certificate(m.t)
			if err == nil && !strings.Contains(reason, "cannot be renewed") {
				err = fmt.Errorf("it says %q", reason)
			}
			return err
		})
	}
}

// waitRenewed waits until all agents have a new certificate. It fails if the old one expired before.
func (m *mesh) waitRenewed(what string, held map[*pod]certificate) {
	m.t.Helper()
	for p, old := range held {
		testenv.Eventually(m.t, p.name+" has another certificate", func() error {
			c, reason, err := p.certificate(m.t)
			switch {
			case err != nil:
				return err
			case c.Serial == old.Serial || reason != "":
				return fmt.Errorf("it is %s still: %s", c.Serial, reason)
			}
			return nil
		})
		if late := time.Since(old.NotAfter); late > 0 {
			m.t.Errorf("%s: %s had no valid certificate for %v: the outage was too long to prove anything", what, p.name, late)
		}
	}
}

// TestAuthorityThatFailsLosesNoRequest: agents serve a certificate while it is valid, and renew it as soon as the
// authority has recovered.
func TestAuthorityThatFailsLosesNoRequest(t *testing.T) {
	far := newRemotePlanes(t)
	m := newMeshWith(t, far, shortLived, far.SecureAddr().String())
	m.runOutage("killed", func() (restore func()) {
		m.planes[0].kill()
		return func() { m.planes[0] = m.start(m.inside[0]) }
	})
	m.runOutage("frozen", func() (restore func()) {
		m.planes[0].signal(syscall.SIGSTOP)
		return func() { m.planes[0].signal(syscall.SIGCONT) }
	})
	m.runOutage("cut off", m.cut)
	m.runUnderLoad("slow", func() {
		defer m.slow(10_000)()
		m.waitRenewed("slow", m.certificates())
	})
	m.runOutage("lying", func() (restore func()) {
		m.planes[0].kill()
		stop := m.serveInvalidResponses()
		return func() { stop(); m.planes[0] = m.start(m.inside[0]) }
	})
	m.runUnderLoad("swapped for another", func() {
		first := m.certificates()[m.client].Issuer
		m.planes[0].kill()
		stop := m.replaceAuthority(newSuccessor(t, m.root()))
		m.waitSignedBy("CN=successor")
		stop()
		m.planes[0] = m.start(m.inside[0])
		m.waitSignedBy(first)
	})
}

// waitSignedBy waits until all agents serve a certificate of the issuer's.
func (m *mesh) waitSignedBy(issuer string) {
	m.t.Helper()
	for _, p := range []*pod{m.pods[0], m.client} {
		testenv.Eventually(m.t, p.name+" has a certificate of "+issuer, func() error {
			c, reason, err := p.certificate(m.t)
			if err == nil && (c.Issuer != issuer || reason != "") {
				err = fmt.Errorf("it has one of %s: %s", c.Issuer, reason)
			}
			return err
		})
	}
}

// successor is an authority with its own root, which the previous authority cross-signed. Proxies that do not have the
// new root yet therefore accept its workloads.
type successor struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	t           testing.TB
	root        *testpki.Authority
	crossSigned *x509.Certificate // its own key under the predecessor's root
}

func newSuccessor(t testing.TB, old *testpki.Authority) *successor {
	s := &successor{t: t, root: testpki.New(t, "successor")}
	s.crossSigned = old.Sign(t, &x509.Certificate{Subject: s.root.Cert.Subject, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign},
		s.root.Key.Public())
	return s
}

func (s *successor) CreateCertificate(_ context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	csr, err := parseRequest(r)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(time.Duration(r.ValidityDuration) * time.Second)
	chain := signCertificate(s.t, s.root, &x509.Certificate{URIs: csr.URIs, NotAfter: end, KeyUsage: x509.KeyUsageDigitalSignature}, csr.PublicKey)
	return &securityv1.IstioCertificateResponse{CertChain: []string{chain[0], string(testpki.PEM(s.crossSigned)), chain[1]}}, nil
}

func parseRequest(r *securityv1.IstioCertificateRequest) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode([]byte(r.Csr))
	if block == nil {
		return nil, errors.New("the request holds no PEM")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// runOutage makes the authority fail under traffic until all agents have noticed.
func (m *mesh) runOutage(what string, disturb func() (restore func())) {
	m.t.Helper()
	m.runUnderLoad(what, func() {
		restore := disturb()
		m.waitRenewalFails()
		held := m.certificates()
		restore()
		m.waitRenewed(what, held)
	})
}

// invalidResponses are responses of a faulty authority, each with the reason that an agent logs for it.
var invalidResponses = []struct {
	reason string
	answer func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string
}{
	{"no PEM certificate", func(testing.TB, *testpki.Authority, *x509.CertificateRequest) []string {
		return []string{"hello", "world"}
	}},
	{"sa/other", func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string {
		return signCertificate(t, root, &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/default/sa/other"}}}, csr.PublicKey)
	}},
	{"not for the requested key", func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string {
		return signCertificate(t, root, &x509.Certificate{URIs: csr.URIs}, root.Key.Public())
	}},
	{"the certificate expired at", func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string {
		past := time.Now().Add(-time.Minute)
		return signCertificate(t, root, &x509.Certificate{URIs: csr.URIs, NotBefore: past.Add(-time.Minute), NotAfter: past}, csr.PublicKey)
	}},
	{"does not chain to a root", func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string {
		return []string{signCertificate(t, testpki.New(t, "unknown"), &x509.Certificate{URIs: csr.URIs}, csr.PublicKey)[0], string(root.PEM())}
	}},
	{"ResourceExhausted", func(testing.TB, *testpki.Authority, *x509.CertificateRequest) []string {
		return []string{strings.Repeat("x", 64<<20)}
	}},
}

func signCertificate(t testing.TB, by *testpki.Authority, template *x509.Certificate, key crypto.PublicKey) []string {
	return []string{string(testpki.PEM(by.Sign(t, template, key))), string(by.PEM())}
}

// faultyAuthority sends each identity all invalidResponses in turn, and then repeats the last one.
type faultyAuthority struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	t    testing.TB
	root *testpki.Authority

	mu   sync.Mutex
	sent map[string]int // number of responses, by the public key of the request
}

func (a *faultyAuthority) CreateCertificate(_ context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	csr, err := parseRequest(r)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	key := string(csr.RawSubjectPublicKeyInfo)
	next := a.sent[key]
	a.sent[key] = min(next+1, len(invalidResponses)-1)
	return &securityv1.IstioCertificateResponse{CertChain: invalidResponses[next].answer(a.t, a.root, csr)}, nil
}

// replaceAuthority serves an authority in the first one's place, with that one's certificate, until stop is called.
func (m *mesh) replaceAuthority(authority securityv1.IstioCertificateServiceServer) (stop func()) {
	m.t.Helper()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(m.authority.ServerTLS(m.inside[0].String()))), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.WaitForHandlers(true))
	securityv1.RegisterIstioCertificateServiceServer(server, authority)
	listener := m.listen()
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	stop = sync.OnceFunc(func() { server.Stop(); <-ended })
	m.t.Cleanup(stop)
	return stop
}

// serveInvalidResponses replaces the authority by a faulty one with the same key, until stop is called. It waits until
// all agents have rejected every invalid response.
func (m *mesh) serveInvalidResponses() (stop func()) {
	m.t.Helper()
	stop = m.replaceAuthority(&faultyAuthority{t: m.t, root: m.root(), sent: map[string]int{}})
	held := m.certificates()
	for p, old := range held {
		testenv.Eventually(m.t, p.name+" has heard all lies", func() error {
			for _, l := range invalidResponses {
				if !strings.Contains(p.output.String(), l.reason) {
					return fmt.Errorf("it has not reported %q", l.reason)
				}
			}
			return nil
		})
		if c, _, err := p.certificate(m.t); err != nil || c.Serial != old.Serial {
			m.t.Errorf("%s took a lie for a certificate: %v, %v", p.name, c, err)
		}
	}
	return stop
}

// root is the true authority's certificate with its key.
func (m *mesh) root() *testpki.Authority {
	m.t.Helper()
	pair, err := tls.LoadX509KeyPair(m.path("state/authority/root-cert.pem"), m.path("state/authority/root-key.pem"))
	if err != nil {
		m.t.Fatal(err)
	}
	return &testpki.Authority{Cert: pair.Leaf, Key: pair.PrivateKey.(crypto.Signer)}
}

// listen listens on the address of the first control plane.
func (m *mesh) listen() (l net.Listener) {
	m.t.Helper()
	err := m.namespace.Run(func() (err error) {
		l, err = net.Listen("tcp", m.SecureAddr().String())
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return l
}
