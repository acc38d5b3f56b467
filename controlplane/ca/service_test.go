package ca

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"
)

// testServer is an authority behind a real gRPC server with TLS.
type testServer struct {
	*Authority
	addr string
	book *logBook
}

func startServer(t *testing.T, opts Options) *testServer {
	t.Helper()
	s := &testServer{book: &logBook{}}
	opts.Logger = s.book.logger()
	s.Authority = load(t, t.TempDir(), opts)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = listener.Addr().String()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(s.ServerTLS())))
	s.RegisterTo(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return s
}

// client connects like an Istio agent, with optional client certificates.
func (s *testServer) client(t *testing.T, certs ...tls.Certificate) securityv1.IstioCertificateServiceClient {
	t.Helper()
	config := &tls.Config{RootCAs: s.signing().pool, ServerName: "istiod.istio-system.svc", Certificates: certs, Time: s.now}
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return securityv1.NewIstioCertificateServiceClient(conn)
}

func (s *testServer) withToken(t *testing.T, namespace, account string) context.Context {
	t.Helper()
	token, err := s.IssueToken(namespace, account, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return bearer(t, token)
}

func bearer(t *testing.T, tokens ...string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	for _, token := range tokens {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return ctx
}

func parseChain(t *testing.T, chain []string) []*x509.Certificate {
	t.Helper()
	var certs []*x509.Certificate
	for _, text := range chain {
		block, rest := pem.Decode([]byte(text))
		if block == nil || len(rest) > 0 {
			t.Fatalf("an element of the chain is not one PEM block: %q", text)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, cert)
	}
	return certs
}

// obtain requests a certificate and fails the test on an error.
func (s *testServer) obtain(t *testing.T, key crypto.Signer, namespace, account string, seconds int64) tls.Certificate {
	t.Helper()
	answer, err := s.client(t).CreateCertificate(s.withToken(t, namespace, account), &securityv1.IstioCertificateRequest{
		Csr: newCSR(t, key, Identity{s.trustDomain, namespace, account}.SPIFFEID()), ValidityDuration: seconds})
	if err != nil {
		t.Fatal(err)
	}
	chain := parseChain(t, answer.CertChain)
	return tls.Certificate{Certificate: [][]byte{chain[0].Raw}, PrivateKey: key, Leaf: chain[0]}
}

func wantStatus(t *testing.T, err error, code codes.Code, parts ...string) {
	t.Helper()
	if got := status.Code(err); got != code {
		t.Fatalf("the response has the status %s (%v); want %s", got, err, code)
	}
	wantError(t, err, parts...)
}

func TestClientReceivesACertificateForItsIdentity(t *testing.T) {
	s := startServer(t, Options{TrustDomain: "mesh.example"})
	id := "spiffe://mesh.example/ns/shop/sa/reviews"
	for name, key := range map[string]crypto.Signer{"ECDSA": newKey(t), "RSA": rsaKey(t, 2048)} {
		for _, names := range [][]string{{id}, {}} {
			answer, err := s.client(t).CreateCertificate(s.withToken(t, "shop", "reviews"), &securityv1.IstioCertificateRequest{
				Csr: newCSR(t, key, names...), ValidityDuration: 3600})
			if err != nil {
				t.Fatal(err)
			}
			chain := parseChain(t, answer.CertChain)
			if len(chain) != 2 || !slices.Equal(chain[1].Raw, s.signing().issuer.cert.Raw) {
				t.Fatalf("the chain has %d certificates and does not end with the root", len(chain))
			}
			checkLeaf(t, s.Authority, chain[0], id, key)
			encipher := chain[0].KeyUsage&x509.KeyUsageKeyEncipherment != 0
			if encipher != (name == "RSA") {
				t.Errorf("%s: the key usage includes key encipherment: %v", name, encipher)
			}
		}
	}
}

func checkLeaf(t *testing.T, a *Authority, leaf *x509.Certificate, id string, key crypto.Signer) {
	t.Helper()
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: a.signing().pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != id || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
		t.Errorf("the certificate has the names %v %v %v", leaf.URIs, leaf.DNSNames, leaf.IPAddresses)
	}
	if got := leaf.Subject.String(); got != "" {
		t.Errorf("the subject is %q", got)
	}
	if leaf.IsCA || !leaf.BasicConstraintsValid || leaf.KeyUsage&x509.KeyUsageCertSign != 0 {
		t.Error("the certificate is a CA certificate")
	}
	if leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		t.Error("the key usage does not include digital signatures")
	}
	if want := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}; !slices.Equal(leaf.ExtKeyUsage, want) {
		t.Errorf("the extended key usage is %v", leaf.ExtKeyUsage)
	}
	if !key.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(leaf.PublicKey) {
		t.Error("the certificate does not contain the client's key")
	}
	for _, extension := range leaf.Extensions {
		if extension.Id.String() == "2.5.29.17" && !extension.Critical {
			t.Error("the subject is empty, but the subject alternative name is not critical (RFC 5280, 4.2.1.6)")
		}
	}
	if bits := leaf.SerialNumber.BitLen(); bits < 64 || bits > 128 {
		t.Errorf("the serial number has %d bits", bits)
	}
}

func TestRequestForAnotherIdentityIsRefusedAndLogged(t *testing.T) {
	s := startServer(t, Options{})
	_, err := s.client(t).CreateCertificate(s.withToken(t, "shop", "reviews"), &securityv1.IstioCertificateRequest{
		Csr: newCSR(t, newKey(t), "spiffe://cluster.local/ns/shop/sa/admin")})
	wantStatus(t, err, codes.PermissionDenied, "spiffe://cluster.local/ns/shop/sa/reviews", "spiffe://cluster.local/ns/shop/sa/admin")
	for _, part := range []string{
		"level=WARN", "caller=spiffe://cluster.local/ns/shop/sa/reviews", "requestedIdentity=spiffe://cluster.local/ns/shop/sa/admin", "address=127.0.0.1:",
	} {
		if !strings.Contains(s.book.String(), part) {
			t.Errorf("the log does not contain %q: %s", part, s.book.String())
		}
	}
}

func TestUnauthenticatedClientIsRefusedAndLogged(t *testing.T) {
	now := newClock()
	s := startServer(t, Options{Clock: now.time})
	other := load(t, t.TempDir(), Options{})
	foreign, err := other.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	good, err := s.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	basic := metadata.AppendToOutgoingContext(bearer(t), "authorization", "Basic YTpi")
	for name, c := range map[string]struct {
		ctx  context.Context
		want string
	}{
		"nothing":        {bearer(t), "is not authenticated"},
		"a password":     {basic, "is not authenticated"},
		"an empty token": {bearer(t, ""), "is not authenticated"},
		"another CA's":   {bearer(t, foreign), "not signed by this authority"},
		"two tokens":     {bearer(t, good, foreign), "more than one token"},
	} {
		t.Run(name, func(t *testing.T) {
			now.advance(refusalLogInterval)
			_, err := s.client(t).CreateCertificate(c.ctx, &securityv1.IstioCertificateRequest{Csr: newCSR(t, newKey(t))})
			wantStatus(t, err, codes.Unauthenticated, c.want)
			if !strings.Contains(s.book.String(), c.want) {
				t.Errorf("the log does not contain the reason: %s", s.book.String())
			}
		})
	}
	if strings.Contains(s.book.String(), foreign) {
		t.Error("the log contains a token")
	}
}

func TestBadRequestIsRefusedWithTheReason(t *testing.T) {
	s := startServer(t, Options{})
	for csr, want := range map[string]string{
		"": "PEM", newCSR(t, ecKey(t, elliptic.P224())): "P-224 is not accepted", strings.Repeat("x", maxCSR+1): "at most",
	} {
		_, err := s.client(t).CreateCertificate(s.withToken(t, "shop", "reviews"), &securityv1.IstioCertificateRequest{Csr: csr})
		wantStatus(t, err, codes.InvalidArgument, want)
	}
}

func TestClientCertificateOfTheMeshProvesItsIdentity(t *testing.T) {
	s := startServer(t, Options{})
	own := s.obtain(t, newKey(t), "shop", "reviews", 3600)
	client := s.client(t, own)
	key := newKey(t)
	answer, err := client.CreateCertificate(bearer(t), &securityv1.IstioCertificateRequest{Csr: newCSR(t, key)})
	if err != nil {
		t.Fatal(err)
	}
	checkLeaf(t, s.Authority, parseChain(t, answer.CertChain)[0], "spiffe://cluster.local/ns/shop/sa/reviews", key)
	_, err = client.CreateCertificate(bearer(t), &securityv1.IstioCertificateRequest{
		Csr: newCSR(t, key, "spiffe://cluster.local/ns/shop/sa/admin")})
	wantStatus(t, err, codes.PermissionDenied, "admin")
}

func TestCertificateExpiredDuringConnectionIsRefused(t *testing.T) {
	now := newClock()
	s := startServer(t, Options{Clock: now.time})
	client := s.client(t, s.obtain(t, newKey(t), "shop", "reviews", 60))
	request := &securityv1.IstioCertificateRequest{Csr: newCSR(t, newKey(t))}
	if _, err := client.CreateCertificate(bearer(t), request); err != nil {
		t.Fatal(err)
	}
	now.advance(2 * time.Minute)
	_, err := client.CreateCertificate(bearer(t), request)
	wantStatus(t, err, codes.Unauthenticated, "client certificate expired")
	if _, err := client.CreateCertificate(s.withToken(t, "shop", "reviews"), request); err != nil {
		t.Errorf("with an additional token: %v", err)
	}
}

func TestClientCertificateOfAnotherCAIsRefused(t *testing.T) {
	s, other := startServer(t, Options{}), startServer(t, Options{})
	client := s.client(t, other.obtain(t, newKey(t), "shop", "reviews", 3600))
	_, err := client.CreateCertificate(s.withToken(t, "shop", "reviews"), &securityv1.IstioCertificateRequest{Csr: newCSR(t, newKey(t))})
	wantStatus(t, err, codes.Unavailable)
}

// The control plane's own certificate has no SPIFFE ID and is valid only for servers.
func TestServerCertificateIsNotAnIdentity(t *testing.T) {
	s := startServer(t, Options{})
	server, err := s.ServerCertificate("localhost")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.client(t, *server).CreateCertificate(bearer(t), &securityv1.IstioCertificateRequest{Csr: newCSR(t, newKey(t))})
	wantStatus(t, err, codes.Unavailable)
	if id, err := s.IdentityOf(server.Leaf); err == nil {
		t.Errorf("the server's certificate is accepted as the identity %v", id)
	}
}

func TestCertificatesWithoutExactlyOneIdentityAreRefused(t *testing.T) {
	a := load(t, t.TempDir(), Options{})
	for want, names := range map[string][]string{
		"0 URIs":                          {},
		"2 URIs":                          {"spiffe://cluster.local/ns/a/sa/b", "spiffe://cluster.local/ns/a/sa/c"},
		"not in trust domain":             {"spiffe://other.example/ns/a/sa/b"},
		"not of the form":                 {"spiffe://cluster.local/workload"},
		"not a SPIFFE ID":                 {"https://cluster.local/ns/a/sa/b"},
		"is not of the form spiffe://TRU": {"spiffe://cluster.local"}, // the name in the root certificate
	} {
		cert := &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}
		for _, name := range names {
			uri, err := url.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			cert.URIs = append(cert.URIs, uri)
		}
		_, err := a.IdentityOf(cert)
		wantError(t, err, want)
	}
}

func TestRequestedValidityIsLimited(t *testing.T) {
	now := newClock()
	a := load(t, t.TempDir(), Options{Clock: now.time, TTL: time.Hour, MaxTTL: 48 * time.Hour})
	for requested, want := range map[int64]time.Duration{
		0: time.Hour, -5: time.Hour, math.MinInt64: time.Hour, 60: time.Minute, 36 * 3600: 36 * time.Hour,
		72 * 3600: 48 * time.Hour, math.MaxInt64: 48 * time.Hour,
	} {
		leaf, err := a.signWorkload(Identity{"cluster.local", "a", "b"}, newKey(t).Public(), seconds(requested))
		if err != nil {
			t.Fatal(err)
		}
		if got := leaf.NotAfter.Sub(now.time().Truncate(time.Second)); got != want {
			t.Errorf("requested %d s: the certificate expires after %s; want %s", requested, got, want)
		}
	}
}

func TestCertificateIsValidForSlowClocks(t *testing.T) {
	now := newClock()
	a := load(t, t.TempDir(), Options{Clock: now.time})
	leaf, err := a.signWorkload(Identity{"cluster.local", "a", "b"}, newKey(t).Public(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if got := now.time().Sub(leaf.NotBefore).Round(time.Second); got < backdate-time.Second || got > backdate+time.Second {
		t.Errorf("the certificate is valid since %s ago", got)
	}
	if leaf.NotBefore.Before(a.signing().issuer.cert.NotBefore) {
		t.Error("the certificate is valid before its root is")
	}
}

func TestNoCertificateOutlivesTheRoot(t *testing.T) {
	now := newClock()
	a := load(t, t.TempDir(), Options{Clock: now.time})
	now.advance(rootTTL - time.Hour)
	id := Identity{"cluster.local", "a", "b"}
	leaf, err := a.signWorkload(id, newKey(t).Public(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if !leaf.NotAfter.Equal(a.RootNotAfter()) {
		t.Errorf("the certificate expires at %s, the root at %s", leaf.NotAfter, a.RootNotAfter())
	}
	now.advance(2 * time.Hour)
	_, err = a.signWorkload(id, newKey(t).Public(), time.Hour)
	wantError(t, err, a.location(), "expired at", "move that directory away")
}

func TestSerialNumbersAreNotRepeated(t *testing.T) {
	a := load(t, t.TempDir(), Options{})
	seen := map[string]bool{}
	key := newKey(t)
	for range 100 {
		leaf, err := a.signWorkload(Identity{"cluster.local", "a", "b"}, key.Public(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if seen[leaf.SerialNumber.String()] {
			t.Fatal("a serial number was repeated")
		}
		seen[leaf.SerialNumber.String()] = true
	}
}

func TestMetricsCountRequestResults(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := startServer(t, Options{Registerer: registry})
	client := s.client(t)
	ask := func(ctx context.Context, csr string) {
		_, _ = client.CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: csr})
	}
	ask(bearer(t), newCSR(t, newKey(t)))
	ask(s.withToken(t, "a", "b"), "")
	ask(s.withToken(t, "a", "b"), newCSR(t, newKey(t), "spiffe://cluster.local/ns/a/sa/c"))
	ask(s.withToken(t, "a", "b"), newCSR(t, newKey(t)))
	for c, want := range map[prometheus.Counter]float64{
		s.metrics.requests: 4, s.metrics.unauthenticated: 1, s.metrics.malformed: 1, s.metrics.otherIdentity: 1, s.metrics.signed: 1, s.metrics.failed: 0,
	} {
		if got := testutil.ToFloat64(c); got != want {
			t.Errorf("%s is %v; want %v", c.Desc(), got, want)
		}
	}
	if n, err := testutil.GatherAndCount(registry, "citadel_server_root_cert_expiry_timestamp"); n != 1 || err != nil {
		t.Errorf("the metric of the root's expiry: %d series, value %v", n, err)
	}
	if _, err := Load(t.TempDir(), Options{Registerer: registry}); err == nil {
		t.Error("a second authority registers the same metrics without an error")
	}
}

func TestRefusalsOfUnauthenticatedCallersAreLoggedOncePerInterval(t *testing.T) {
	now := newClock()
	s := startServer(t, Options{Clock: now.time})
	call := func(times int) {
		for range times {
			_, err := s.client(t).CreateCertificate(bearer(t), &securityv1.IstioCertificateRequest{})
			wantStatus(t, err, codes.Unauthenticated)
		}
	}
	const line = "refused a certificate request: the client is not authenticated"
	call(10)
	if n := strings.Count(s.book.String(), line); n != 1 {
		t.Fatalf("%d lines for 10 calls:\n%s", n, s.book)
	}
	now.advance(refusalLogInterval)
	call(1)
	if n := strings.Count(s.book.String(), line); n != 2 || !strings.Contains(s.book.String(), "suppressedLines=9") {
		t.Errorf("%d lines after the interval, want 2 and a count of 9:\n%s", n, s.book)
	}
	if n := testutil.ToFloat64(s.metrics.unauthenticated); n != 11 {
		t.Errorf("the metric counts %v of 11 calls", n)
	}
}
