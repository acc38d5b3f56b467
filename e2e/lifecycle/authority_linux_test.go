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

// certificate is what the pod's agent says of the identity that it serves.
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

// stuck waits until all agents say that their certificate cannot be renewed.
func (m *mesh) stuck() {
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

// renewed waits until all agents have a certificate of after the outage, before the old one has ended.
func (m *mesh) renewed(what string, held map[*pod]certificate) {
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

// TestAuthorityThatFailsLosesNoRequest: while a certificate is valid it serves, whatever its authority does, and it is
// renewed as soon as the authority is well.
func TestAuthorityThatFailsLosesNoRequest(t *testing.T) {
	far := newFarAway(t)
	m := newMeshOf(t, far, shortLived, far.SecureAddr().String())
	m.outageOf("killed", func() (mend func()) {
		m.planes[0].kill()
		return func() { m.planes[0] = m.start(m.inside[0]) }
	})
	m.outageOf("frozen", func() (mend func()) {
		m.planes[0].signal(syscall.SIGSTOP)
		return func() { m.planes[0].signal(syscall.SIGCONT) }
	})
	m.outageOf("cut off", m.cut)
	m.under("slow", func() {
		defer m.slow(10_000)()
		m.renewed("slow", m.certificates())
	})
	m.outageOf("lying", func() (mend func()) {
		m.planes[0].kill()
		stop := m.lie()
		return func() { stop(); m.planes[0] = m.start(m.inside[0]) }
	})
	m.under("swapped for another", func() {
		first := m.certificates()[m.client].Issuer
		m.planes[0].kill()
		stop := m.inPlace(newSuccessor(t, m.root()))
		m.signedBy("CN=successor")
		stop()
		m.planes[0] = m.start(m.inside[0])
		m.signedBy(first)
	})
}

// signedBy waits until all agents serve a certificate of the issuer's.
func (m *mesh) signedBy(issuer string) {
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

// successor is an authority with a root of its own, which its predecessor has signed, so that who has not yet heard of it
// lets its workloads in.
type successor struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	t     testing.TB
	own   *testpki.Authority
	below *x509.Certificate // its own key under the predecessor's root
}

func newSuccessor(t testing.TB, old *testpki.Authority) *successor {
	s := &successor{t: t, own: testpki.New(t, "successor")}
	s.below = old.Sign(t, &x509.Certificate{Subject: s.own.Cert.Subject, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign},
		s.own.Key.Public())
	return s
}

func (s *successor) CreateCertificate(_ context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	csr, err := parseRequest(r)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(time.Duration(r.ValidityDuration) * time.Second)
	chain := signed(s.t, s.own, &x509.Certificate{URIs: csr.URIs, NotAfter: end, KeyUsage: x509.KeyUsageDigitalSignature}, csr.PublicKey)
	return &securityv1.IstioCertificateResponse{CertChain: []string{chain[0], string(testpki.PEM(s.below)), chain[1]}}, nil
}

func parseRequest(r *securityv1.IstioCertificateRequest) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode([]byte(r.Csr))
	if block == nil {
		return nil, errors.New("the request holds no PEM")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// outageOf has the authority fail under traffic until all agents have noticed.
func (m *mesh) outageOf(what string, disturb func() (mend func())) {
	m.t.Helper()
	m.under(what, func() {
		mend := disturb()
		m.stuck()
		held := m.certificates()
		mend()
		m.renewed(what, held)
	})
}

// lies are answers of an authority that has gone mad, by what an agent says of them.
var lies = []struct {
	reason string
	answer func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string
}{
	{"no PEM certificate", func(testing.TB, *testpki.Authority, *x509.CertificateRequest) []string {
		return []string{"hello", "world"}
	}},
	{"sa/other", func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string {
		return signed(t, root, &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/default/sa/other"}}}, csr.PublicKey)
	}},
	{"another key", func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string {
		return signed(t, root, &x509.Certificate{URIs: csr.URIs}, root.Key.Public())
	}},
	{"the certificate expired at", func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string {
		past := time.Now().Add(-time.Minute)
		return signed(t, root, &x509.Certificate{URIs: csr.URIs, NotBefore: past.Add(-time.Minute), NotAfter: past}, csr.PublicKey)
	}},
	{"does not lead to a root", func(t testing.TB, root *testpki.Authority, csr *x509.CertificateRequest) []string {
		return []string{signed(t, testpki.New(t, "unknown"), &x509.Certificate{URIs: csr.URIs}, csr.PublicKey)[0], string(root.PEM())}
	}},
	{"ResourceExhausted", func(testing.TB, *testpki.Authority, *x509.CertificateRequest) []string {
		return []string{strings.Repeat("x", 64<<20)}
	}},
}

func signed(t testing.TB, by *testpki.Authority, template *x509.Certificate, key crypto.PublicKey) []string {
	return []string{string(testpki.PEM(by.Sign(t, template, key))), string(by.PEM())}
}

// madAuthority tells each identity all of the lies in turn, and then the last one for ever.
type madAuthority struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	t    testing.TB
	root *testpki.Authority

	mu   sync.Mutex
	told map[string]int // by the key that a certificate is asked for
}

func (a *madAuthority) CreateCertificate(_ context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	csr, err := parseRequest(r)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	key := string(csr.RawSubjectPublicKeyInfo)
	next := a.told[key]
	a.told[key] = min(next+1, len(lies)-1)
	return &securityv1.IstioCertificateResponse{CertChain: lies[next].answer(a.t, a.root, csr)}, nil
}

// inPlace serves an authority in the first one's place, with that one's certificate, until stop is called.
func (m *mesh) inPlace(authority securityv1.IstioCertificateServiceServer) (stop func()) {
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

// lie has an authority in the first one's place tell all lies to all agents, until stop is called. It has the true
// authority's key.
func (m *mesh) lie() (stop func()) {
	m.t.Helper()
	stop = m.inPlace(&madAuthority{t: m.t, root: m.root(), told: map[string]int{}})
	held := m.certificates()
	for p, old := range held {
		testenv.Eventually(m.t, p.name+" has heard all lies", func() error {
			for _, l := range lies {
				if !strings.Contains(p.output.String(), l.reason) {
					return fmt.Errorf("it has not said %q", l.reason)
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

// listen takes the place of the first control plane.
func (m *mesh) listen() (l net.Listener) {
	m.t.Helper()
	err := m.namespace.Within(func() (err error) {
		l, err = net.Listen("tcp", m.SecureAddr().String())
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return l
}
