package ca

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	securityv1 "istio.io/api/security/v1alpha1"
)

// member is a workload with its certificate and roots.
type member struct {
	chain []*x509.Certificate
	roots *x509.CertPool
	count int // number of root certificates
}

func (s *testServer) member(t *testing.T, ctx context.Context, roots *x509.CertPool) member {
	t.Helper()
	served := *s
	if roots != nil { // if nil, the member receives no other roots than those in its root file
		served.Authority = &Authority{opts: s.opts}
		served.signs.Store(&signing{pool: roots})
	}
	answer, err := served.client(t).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{
		Csr: newCSR(t, newKey(t), "spiffe://cluster.local/ns/shop/sa/reviews"),
	})
	if err != nil {
		t.Fatal(err)
	}
	m := member{roots: x509.NewCertPool()}
	last := len(answer.CertChain) - 1
	m.chain = parseChain(t, answer.CertChain[:last])
	bundle, err := parseCertificates([]byte(answer.CertChain[last]))
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range bundle {
		m.roots.AddCert(root)
	}
	m.count = len(bundle)
	return m
}

func (m member) trusts(o member, now time.Time) error {
	between := x509.NewCertPool()
	for _, c := range o.chain[1:] {
		between.AddCert(c)
	}
	_, err := o.chain[0].Verify(x509.VerifyOptions{Roots: m.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

func wantTrust(t *testing.T, now time.Time, members ...member) {
	t.Helper()
	for i, a := range members {
		for j, b := range members {
			if err := a.trusts(b, now); err != nil {
				t.Errorf("member %d does not trust member %d: %v", i, j, err)
			}
		}
	}
}

func TestRotationCausesNoFailedHandshake(t *testing.T) {
	clock := newClock()
	s := startServer(t, Options{Clock: clock.time, TTL: 40 * time.Hour, MaxTTL: 48 * time.Hour, Overlap: 24 * time.Hour})
	token := func() context.Context { return s.withToken(t, "shop", "reviews") }
	file := s.signing().pool // a root file that the agents do not replace until the end of the test
	before := s.member(t, token(), file)
	step := func(want RotationStep) {
		t.Helper()
		if got, err := s.Rotate(false); err != nil || got != want {
			t.Fatalf("the executed step is %q (%v), want %q", got, err, want)
		}
	}
	step(Announce)
	told := s.member(t, token(), file)
	if told.count != 2 || !told.chain[0].NotAfter.Equal(before.chain[0].NotAfter) && told.chain[0].Issuer.String() != before.chain[0].Issuer.String() {
		t.Errorf("after the announcement there are %d roots", told.count)
	}
	wantTrust(t, clock.time(), before, told)
	if _, err := s.Rotate(false); err == nil || !strings.Contains(err.Error(), "due at") {
		t.Fatalf("the new root signs before all members trust it: %v", err)
	}
	clock.advance(25 * time.Hour) // all members have renewed their certificates
	step(Activate)
	after := s.member(t, token(), file)
	wantTrust(t, clock.time(), told, after)
	if before.trusts(after, clock.time()) == nil {
		t.Error("after the activation the old root still signs")
	}
	// The new issuer accepts a client certificate that the old one signed.
	if _, err := s.Rotate(false); err == nil {
		t.Fatal("Rotate retires a root although certificates that it signed are still valid")
	}
	clock.advance(49 * time.Hour)
	wantTrust(t, told.chain[0].NotAfter.Add(-time.Second), told, after)
	step(Retire)
	last := s.member(t, token(), nil)
	wantTrust(t, clock.time().Add(-time.Second), last)
	if err := last.trusts(after, after.chain[0].NotAfter.Add(-time.Second)); err != nil {
		t.Errorf("members do not trust a certificate that the new root signed: %v", err)
	}
	if last.count != 1 {
		t.Errorf("%d roots are trusted after the retirement, want 1", last.count)
	}
	if _, err := os.Stat(filepath.Join(s.store.Location(), rootKeyFile)); !os.IsNotExist(err) {
		t.Errorf("the retired root's key still exists: %v", err)
	}
	again := load(t, s.store.(dirStore).dir, Options{Clock: clock.time})
	if !bytes.Equal(again.RootPEM(), s.RootPEM()) || again.TrustDomain() != s.TrustDomain() {
		t.Error("after a restart the authority has another root")
	}
}

func TestRotationIsReloadedAndAutomatic(t *testing.T) {
	clock := newClock()
	dir := t.TempDir()
	one, two := load(t, dir, Options{Clock: clock.time}), load(t, dir, Options{Clock: clock.time})
	if _, err := one.Rotate(false); err != nil {
		t.Fatal(err)
	}
	if changed, err := two.Reload(); err != nil || !changed || !bytes.Equal(one.RootPEM(), two.RootPEM()) {
		t.Errorf("Reload in the other process: %v, %v", changed, err)
	}
	clock.advance(DefaultOverlap + time.Hour)
	steps := make(chan int, 10)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); two.Run(ctx, time.Millisecond, func() { steps <- 1 }) }()
	defer func() { cancel(); <-done }()
	select {
	case <-steps:
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not execute a step that is due")
	}
	if r, err := two.Rotation(); err != nil || r.Next != Retire {
		t.Errorf("the state of the rotation is %+v, %v", r, err)
	}
}

func writePEM(t *testing.T, path, kind string, ders ...[]byte) {
	t.Helper()
	var data []byte
	for _, der := range ders {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// plugInDir creates the directory of an external RSA CA with a root and an intermediate CA, as in many companies.
func plugInDir(t *testing.T, dir string) (root *x509.Certificate) {
	t.Helper()
	make := func(name string, serial int64, parent *x509.Certificate, signer *rsa.PrivateKey) (*x509.Certificate, *rsa.PrivateKey) {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Duration(10-serial) * time.Hour), KeyUsage: x509.KeyUsageCertSign}
		if parent == nil {
			parent, signer = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	root, rootKey := make("root", 1, nil, nil)
	middle, middleKey := make("middle", 2, root, rootKey)
	ca, caKey := make("mesh", 3, middle, middleKey)
	writePEM(t, filepath.Join(dir, plugInCert), pemCertificate, ca.Raw)
	writePEM(t, filepath.Join(dir, plugInKey), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(caKey))
	writePEM(t, filepath.Join(dir, plugInChain), pemCertificate, ca.Raw, middle.Raw, root.Raw)
	writePEM(t, filepath.Join(dir, plugInRoots), pemCertificate, root.Raw)
	return root
}

func TestPlugInCertificatesChainToTheirRoot(t *testing.T) {
	dir := t.TempDir()
	root := plugInDir(t, dir)
	s := startServer(t, Options{PlugIn: PlugInDir(dir)})
	pool := x509.NewCertPool()
	pool.AddCert(root)
	m := s.member(t, s.withToken(t, "shop", "reviews"), pool)
	if len(m.chain) != 3 || m.count != 1 {
		t.Errorf("the chain has %d certificates, the trust bundle %d roots", len(m.chain), m.count)
	}
	wantTrust(t, time.Now(), m)
	if end := m.chain[0].NotAfter; end.After(time.Now().Add(8 * time.Hour)) {
		t.Errorf("the certificate outlives its issuer: it expires at %s", end)
	}
	// A valid CA replaces the current one; an invalid one does not.
	other := t.TempDir()
	plugInDir(t, other)
	data, err := os.ReadFile(filepath.Join(other, plugInKey))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, plugInKey), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), plugInKey) {
		t.Errorf("loading a key that does not belong to the certificate: %v", err)
	}
	wantTrust(t, time.Now(), m, s.member(t, s.withToken(t, "shop", "reviews"), pool))
	if err := os.Chmod(filepath.Join(dir, plugInKey), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = s.Reload()
	wantError(t, err, dir, "0644", replacePlugIn)
	if _, err := s.Rotate(true); err == nil {
		t.Error("Rotate accepts an external CA")
	}
}

// The control plane reads an external CA from its own directory, so the test replaces the files there and not in the
// state directory.
func TestPlugInIsReplacedInItsOwnDirectory(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	plugInDir(t, dir)
	a := load(t, t.TempDir(), Options{PlugIn: PlugInDir(dir), Clock: now.time})
	now.advance(24 * time.Hour)
	_, err := a.signWorkload(Identity{"cluster.local", "a", "b"}, newKey(t).Public(), time.Hour)
	wantError(t, err, "in "+dir+" expired at", replacePlugIn)
	if err := os.Remove(filepath.Join(dir, plugInRoots)); err != nil {
		t.Fatal(err)
	}
	_, err = a.Reload()
	wantError(t, err, dir, plugInRoots+" is missing", replacePlugIn)
}

// The change is logged also if another process makes it.
func TestChangedAuthorityIsLogged(t *testing.T) {
	dir := t.TempDir()
	var book logBook
	a := load(t, dir, Options{Logger: book.logger()})
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := load(t, dir, Options{}).Rotate(false); err != nil {
		t.Fatal(err)
	}
	a.Run(ctx, time.Millisecond, cancel)
	if text := book.String(); !strings.Contains(text, "reloaded the certificate authority") || !strings.Contains(text, "roots=2") {
		t.Errorf("logged %s", text)
	}
}

func TestTokensOfATrustedIssuerIdentifyAServiceAccount(t *testing.T) {
	key, stranger := newKey(t), newKey(t)
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, Options{Issuers: []TokenIssuer{{Issuer: "https://oidc.example", Audiences: []string{"mesh"}, Keys: func() (string, error) { return string(set), nil }}}})
	token := func(by any, claims jwt.Claims) context.Context {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: by, KeyID: "k"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.Signed(signer).Claims(claims).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return bearer(t, text)
	}
	good := func() jwt.Claims {
		return jwt.Claims{Issuer: "https://oidc.example", Subject: "system:serviceaccount:shop:reviews", Audience: jwt.Audience{"mesh"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	}
	s.member(t, token(key, good()), nil)
	for name, ctx := range map[string]context.Context{
		"another's key": token(stranger, good()),
		"audience":      token(key, func() jwt.Claims { c := good(); c.Audience = jwt.Audience{"istio-ca"}; return c }()),
		"expired":       token(key, func() jwt.Claims { c := good(); c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Hour)); return c }()),
		"no expiry":     token(key, func() jwt.Claims { c := good(); c.Expiry = nil; return c }()),
		"issuer":        token(key, func() jwt.Claims { c := good(); c.Issuer = "https://other.example"; return c }()),
		"subject":       token(key, func() jwt.Claims { c := good(); c.Subject = "reviews"; return c }()),
		"our issuer": token(key, func() jwt.Claims {
			c := good()
			c.Issuer = "spiffe://cluster.local"
			c.Audience = jwt.Audience{"istio-ca"}
			return c
		}()),
	} {
		_, err := s.client(t).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: newCSR(t, newKey(t))})
		if err == nil {
			t.Errorf("%s: a certificate was issued", name)
			continue
		}
		wantStatus(t, err, codes.Unauthenticated)
	}
}

func TestIssuanceIsAuditedWithoutSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	audit, closeAudit, err := AuditFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closeAudit() }()
	s := startServer(t, Options{Audit: audit})
	ctx := s.withToken(t, "shop", "reviews")
	cert := s.obtain(t, newKey(t), "shop", "reviews", 3600)
	_, _ = s.client(t).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: newCSR(t, newKey(t), "spiffe://cluster.local/ns/bank/sa/boss")})
	for range 20 {
		_, _ = s.client(t).CreateCertificate(bearer(t, "secret.token.text"), &securityv1.IstioCertificateRequest{Csr: newCSR(t, newKey(t))})
	}
	_, err = s.client(t, cert).CreateCertificate(bearer(t), &securityv1.IstioCertificateRequest{Csr: newCSR(t, newKey(t))})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"msg":"issued","identity":"spiffe://cluster.local/ns/shop/sa/reviews","provedBy":"token"`, `"provedBy":"certificate"`,
		`"serial":"` + cert.Leaf.SerialNumber.Text(16), `"msg":"refused","identity":"spiffe://cluster.local/ns/shop/sa/reviews"`, "ns/bank/sa/boss", `"msg":"refused","identity":""`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is not in\n%s", want, data)
		}
	}
	if n := strings.Count(string(data), `"identity":""`); n != 1 {
		t.Errorf("%d lines record 20 refusals of an unauthenticated client, want 1", n)
	}
	if strings.Contains(string(data), "secret.token") || strings.Contains(string(data), "PRIVATE") {
		t.Errorf("a secret is in\n%s", data)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log: %v, %v", info, err)
	}
}

func TestRequestForUnsupportedExtensionsIsRefused(t *testing.T) {
	authority, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	for name, extension := range map[string]pkix.Extension{
		"to be an authority":   {Id: extensionBasicConstraints, Critical: true, Value: authority},
		"name constraints":     {Id: asn1.ObjectIdentifier{2, 5, 29, 30}, Value: []byte{0x30, 0}},
		"an unknown extension": {Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte{5, 0}},
	} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{ExtraExtensions: []pkix.Extension{extension}}, newKey(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseCSR(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))); err == nil || !strings.Contains(err.Error(), "the CSR requests") {
			t.Errorf("%s: %v", name, err)
		}
	}
	var names []string
	for range maxNames + 1 {
		names = append(names, "spiffe://cluster.local/ns/shop/sa/reviews")
	}
	if _, err := parseCSR(newCSR(t, newKey(t), names...)); err == nil {
		t.Error("a request with many names is accepted")
	}
}
