package ca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// logBook is an io.Writer that stores log lines in memory.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logBook) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// clock is a clock that the test controls.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func load(t testing.TB, dir string, opts Options) *Authority {
	t.Helper()
	a, err := Load(dir, opts)
	if err != nil {
		t.Fatalf("loading the authority: %v", err)
	}
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newCSR returns a CSR with names: SPIFFE IDs and other URIs, IP addresses, e-mail addresses and DNS names.
func newCSR(t testing.TB, key crypto.Signer, names ...string) string {
	t.Helper()
	template := &x509.CertificateRequest{}
	for _, name := range names {
		switch {
		case strings.Contains(name, "://"):
			uri, err := url.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			template.URIs = append(template.URIs, uri)
		case net.ParseIP(name) != nil:
			template.IPAddresses = append(template.IPAddresses, net.ParseIP(name))
		case strings.Contains(name, "@"):
			template.EmailAddresses = append(template.EmailAddresses, name)
		default:
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that contains %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not contain %q: %v", part, err)
		}
	}
}

func TestAuthorityIsTheSameAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first := load(t, dir, Options{TrustDomain: "mesh.example"})
	token, err := first.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	second := load(t, dir, Options{TrustDomain: "mesh.example"})
	if !bytes.Equal(first.RootPEM(), second.RootPEM()) {
		t.Error("after a restart the authority has another root")
	}
	id, err := second.VerifyToken(token)
	if err != nil || id != (Identity{"mesh.example", "shop", "reviews"}) {
		t.Errorf("a token from before the restart proves %v, %v", id, err)
	}
}

func TestTrustDomainDefaultsToThatOfTheRoot(t *testing.T) {
	dir := t.TempDir()
	load(t, dir, Options{TrustDomain: "mesh.example"})
	if got := load(t, dir, Options{}).TrustDomain(); got != "mesh.example" {
		t.Errorf("the trust domain is %q", got)
	}
	if got := load(t, t.TempDir(), Options{}).TrustDomain(); got != "cluster.local" {
		t.Errorf("the default trust domain of a new root is %q", got)
	}
}

func TestRootOfAnotherTrustDomainIsRefused(t *testing.T) {
	dir := t.TempDir()
	load(t, dir, Options{TrustDomain: "a.example"})
	_, err := Load(dir, Options{TrustDomain: "b.example"})
	wantError(t, err, dir, `"a.example"`, `"b.example"`, "set the trust domain back", "move that directory away")
}

func TestInvalidTrustDomainIsRefused(t *testing.T) {
	for _, domain := range []string{"a/b", "spiffe://a", "A.example", "a b", "a:1"} {
		dir := t.TempDir()
		if _, err := Load(dir, Options{TrustDomain: domain}); err == nil {
			t.Errorf("Load accepts the trust domain %q", domain)
		}
		if files, _ := os.ReadDir(dir); len(files) > 0 {
			t.Errorf("after Load refused %q, the directory contains %v", domain, files)
		}
	}
}

func TestExpiredRootIsRefusedWithTheRemedy(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	load(t, dir, Options{Clock: now.time})
	now.advance(rootTTL + time.Second)
	_, err := Load(dir, Options{Clock: now.time})
	wantError(t, err, dir, "expired at", "move that directory away", "new token")
}

func TestRootThatIsNotYetValidNamesTheClock(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	load(t, dir, Options{Clock: now.time})
	now.advance(-time.Hour)
	_, err := Load(dir, Options{Clock: now.time})
	wantError(t, err, dir, "not valid before", "set the clock")
}

func TestRootNearExpiryIsWarnedOfOnceADay(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	load(t, dir, Options{Clock: now.time})
	var book logBook
	now.advance(rootTTL - 10*24*time.Hour)
	a := load(t, dir, Options{Clock: now.time, Logger: book.logger()})
	warnings := func() int { return strings.Count(book.String(), "root certificate expires soon") }
	if warnings() != 1 || !strings.Contains(book.String(), dir) || !strings.Contains(book.String(), "remedy") {
		t.Fatalf("the log after loading: %s", book.String())
	}
	id := Identity{"cluster.local", "a", "b"}
	for range 3 {
		if _, err := a.signWorkload(id, newKey(t).Public(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if warnings() != 1 {
		t.Errorf("%d warnings on one day", warnings())
	}
	now.advance(25 * time.Hour)
	if _, err := a.signWorkload(id, newKey(t).Public(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if warnings() != 2 {
		t.Errorf("%d warnings on two days", warnings())
	}
}

func TestRootSignsOnlyLeafCertificates(t *testing.T) {
	a := load(t, t.TempDir(), Options{TrustDomain: "mesh.example"})
	if !a.signing().issuer.cert.IsCA || a.signing().issuer.cert.MaxPathLen != 0 || !a.signing().issuer.cert.MaxPathLenZero {
		t.Error("the root is not a CA certificate, or permits intermediate CAs")
	}
	if a.signing().issuer.cert.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign {
		t.Errorf("the root's key usage is %v", a.signing().issuer.cert.KeyUsage)
	}
	if years := time.Until(a.RootNotAfter()).Hours() / 24 / 365; years < 9.9 || years > 10.1 {
		t.Errorf("the root is valid for %.1f years", years)
	}
	if block, rest := pem.Decode(a.RootPEM()); block == nil || len(rest) > 0 || !bytes.Equal(block.Bytes, a.signing().issuer.cert.Raw) {
		t.Error("RootPEM does not return the root")
	}
	if a.tokenKey.Equal(a.signing().issuer.key.Public()) {
		t.Error("tokens and certificates are signed with the same key")
	}
}
