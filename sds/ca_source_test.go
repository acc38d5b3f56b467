package sds

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

func TestCertificateIsForTheIdentityAndKeyIsNotSent(t *testing.T) {
	for _, kind := range []KeyType{ECDSAP256, ECDSAP384, RSA2048, RSA(3072)} {
		t.Run(string(kind), func(t *testing.T) {
			ca := newAuthority(t)
			address, _ := ca.listen(t, "127.0.0.1:0", nil)
			config := caConfig(address)
			config.Key = kind
			var log *testenv.Buffer
			config.Logger, log = newLogger(t)
			source := newSource(t, config)
			runSource(t, source)
			nextSerial(t, source, "")
			m := source.Current()
			if _, err := parseKeyPair(m.Chain, m.Key); err != nil {
				t.Error(err)
			}
			if got := m.Leaf.URIs[0].String(); got != identity {
				t.Errorf("the certificate is for %s", got)
			}
			if _, isRSA := m.Leaf.PublicKey.(*rsa.PublicKey); isRSA != (kind.rsaBits() > 0) {
				t.Errorf("the key is a %T", m.Leaf.PublicKey)
			}
			if !bytes.Equal(m.Roots, ca.root.PEM()) {
				t.Errorf("the roots are\n%s", m.Roots)
			}
			config.Logger.Info("all of it", "material", m, "key", m.Key, "pointer", &m)
			shown := log.String() + fmt.Sprintf("%v %+v %#v %s %x", m, m, m, m.Key, m.Key)
			if strings.Contains(shown, "PRIVATE KEY") || strings.Contains(shown, fmt.Sprintf("%x", []byte(m.Key))[:40]) || strings.Contains(shown, fmt.Sprint([]byte(m.Key))) {
				t.Errorf("the private key is shown:\n%s", shown)
			}
		})
	}
}

func TestInvalidCAResponsesAreRejected(t *testing.T) {
	ca := newAuthority(t)
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	clock := newFakeClock()
	config := caConfig(address)
	config.Clock = clock
	config.MinRetry, config.MaxRetry = time.Second, time.Second
	config.CallTimeout = 100 * time.Millisecond
	source := newSource(t, config)
	runSource(t, source)
	first := nextSerial(t, source, "")
	ca.set(func(*x509.CertificateRequest) ([]string, error) {
		return nil, status.Error(codes.Unavailable, "starting")
	})
	clock.advance(35 * time.Minute)

	other := testpki.New(t, "other")
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for name, c := range map[string]struct {
		answer func(*x509.CertificateRequest) ([]string, error)
		reason string
	}{
		"refusal": {func(*x509.CertificateRequest) ([]string, error) {
			return nil, status.Error(codes.Unauthenticated, "token expired")
		}, "Unauthenticated: token expired"},
		"nothing": {func(*x509.CertificateRequest) ([]string, error) { return nil, nil }, "no PEM certificate"},
		"garbage": {func(*x509.CertificateRequest) ([]string, error) { return []string{"hello", "world"}, nil }, "no PEM certificate"},
		"wrong identity": {func(csr *x509.CertificateRequest) ([]string, error) {
			edit := func(c *x509.Certificate) {
				c.URIs = []*url.URL{mustParse(t, "spiffe://cluster.local/ns/default/sa/ratings")}
			}
			return []string{ca.sign(ca.root, csr, edit), string(ca.root.PEM())}, nil
		}, "sa/ratings"},
		"further identity": {func(csr *x509.CertificateRequest) ([]string, error) {
			edit := func(c *x509.Certificate) { c.URIs = append(c.URIs, mustParse(t, "spiffe://x/ns/a/sa/b")) }
			return []string{ca.sign(ca.root, csr, edit), string(ca.root.PEM())}, nil
		}, "spiffe://x/ns/a/sa/b"},
		"wrong key": {func(csr *x509.CertificateRequest) ([]string, error) {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			csr.PublicKey = key.Public()
			return []string{ca.sign(ca.root, csr, nil), string(ca.root.PEM())}, err
		}, "not for the requested key"},
		"expired": {func(csr *x509.CertificateRequest) ([]string, error) {
			edit := func(c *x509.Certificate) {
				c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
			}
			return []string{ca.sign(ca.root, csr, edit), string(ca.root.PEM())}, nil
		}, "check the clocks if the certificate is new"},
		"from the future": {func(csr *x509.CertificateRequest) ([]string, error) {
			edit := func(c *x509.Certificate) {
				c.NotBefore, c.NotAfter = time.Now().Add(5*time.Hour), time.Now().Add(6*time.Hour)
			}
			return []string{ca.sign(ca.root, csr, edit), string(ca.root.PEM())}, nil
		}, "check the clocks"},
		"unknown root": {func(csr *x509.CertificateRequest) ([]string, error) {
			return []string{ca.sign(other, csr, nil), string(ca.root.PEM())}, nil
		}, "does not chain to a root"},
		"its own root": {func(csr *x509.CertificateRequest) ([]string, error) {
			leaf := ca.sign(ca.root, csr, nil)
			return []string{leaf, leaf}, nil
		}, "not a CA certificate"},
		"no root": {func(csr *x509.CertificateRequest) ([]string, error) {
			return []string{ca.sign(ca.root, csr, nil)}, nil
		}, "no root certificate"},
		"an authority's certificate": {func(csr *x509.CertificateRequest) ([]string, error) {
			edit := func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }
			return []string{ca.sign(ca.root, csr, edit), string(ca.root.PEM())}, nil
		}, "not a workload certificate"},
		"silence": {func(*x509.CertificateRequest) ([]string, error) { <-release; return nil, nil }, "DeadlineExceeded"},
	} {
		ca.set(c.answer)
		failures := testutil.ToFloat64(source.metrics.failures)
		testenv.Eventually(t, name, func() error {
			clock.advance(time.Second)
			if testutil.ToFloat64(source.metrics.failures) == failures {
				return errors.New("it has not been counted")
			}
			ok, reason := source.Health()
			if !ok {
				return fmt.Errorf("the source is not healthy any more: %s", reason)
			}
			if !strings.Contains(reason, c.reason) || !strings.Contains(reason, "cannot be renewed") {
				return errors.New(reason)
			}
			return nil
		})
		if got := source.Current().Leaf.SerialNumber.String(); got != first {
			t.Fatalf("%s: the certificate was replaced", name)
		}
	}

	ca.life = 24 * time.Hour // the fake clock is ahead of the authority's
	ca.set(ca.good)
	advanceToRotation(t, clock, source, first)
	if ok, reason := source.Health(); !ok || reason != "" {
		t.Errorf("health = %v, %q", ok, reason)
	}
}

func TestSignerIsSentInTheRequest(t *testing.T) {
	for _, signer := range []string{"", "istio-system"} {
		ca := newAuthority(t)
		address, _ := ca.listen(t, "127.0.0.1:0", nil)
		config := caConfig(address)
		config.Signer = signer
		source := newSource(t, config)
		runSource(t, source)
		nextSerial(t, source, "")
		ca.mu.Lock()
		got := ca.signer
		ca.mu.Unlock()
		if got != signer {
			t.Errorf("the request names the signer %q, want %q", got, signer)
		}
	}
}

func TestCertificateIsRotatedBeforeItExpires(t *testing.T) {
	ca := newAuthority(t)
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	clock := newFakeClock()
	config := caConfig(address)
	config.Clock = clock
	source := newSource(t, config)
	runSource(t, source)
	first := nextSerial(t, source, "")
	leaf := source.Current().Leaf
	half := leaf.NotAfter.Sub(leaf.NotBefore) / 2
	if at := leaf.NotAfter.Sub(source.NextRotation()); at < half-time.Minute || at > half+time.Minute {
		t.Errorf("the rotation is %s before the expiry, want about %s", at, half)
	}
	clock.advance(20 * time.Minute)
	if got := ca.calls.Load(); got != 1 {
		t.Errorf("%d requests before the rotation was due", got)
	}
	clock.advance(12 * time.Minute)
	advanceToRotation(t, clock, source, first)
}

// TestClockJumpIsNoticedWithinAMinute sets the clock past the certificate's expiry, as after a suspension of the
// machine, and back.
func TestClockJumpIsNoticedWithinAMinute(t *testing.T) {
	ca := newAuthority(t)
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	clock := newFakeClock()
	config := caConfig(address)
	config.Clock = clock
	source := newSource(t, config)
	runSource(t, source)
	first := nextSerial(t, source, "")
	testenv.Eventually(t, "the source waits for the rotation", func() error {
		if !clock.hasWaiters() {
			return errors.New("not yet")
		}
		return nil
	})

	clock.jump(-365 * 24 * time.Hour)
	clock.advance(maxPause)
	if ok, reason := source.Health(); !ok || source.Current().Leaf.SerialNumber.String() != first {
		t.Errorf("after a jump back: %v, %q, or another certificate", ok, reason)
	}
	testenv.Eventually(t, "the source waits again", func() error {
		if !clock.hasWaiters() {
			return errors.New("not yet")
		}
		return nil
	})
	ca.life = 2 * 365 * 24 * time.Hour // still valid when the clock is a year ahead
	clock.jump(365*24*time.Hour + 12*time.Hour)
	if ok, reason := source.Health(); ok || !strings.Contains(reason, "expired") {
		t.Errorf("after a jump beyond the expiry: %v, %q", ok, reason)
	}
	clock.advance(maxPause)
	if next := nextSerial(t, source, first); next == first {
		t.Error("no new certificate within a minute")
	}
	if ok, reason := source.Health(); !ok {
		t.Errorf("with the new certificate: %q", reason)
	}
}

func TestCertificateThatCannotBeRenewedIsServedAndReported(t *testing.T) {
	ca := newAuthority(t)
	address, stop := ca.listen(t, "127.0.0.1:0", nil)
	clock := newFakeClock()
	config := caConfig(address)
	config.Clock = clock
	source := newSource(t, config)
	runSource(t, source)
	first := nextSerial(t, source, "")
	stop()
	clock.advance(40 * time.Minute)
	testenv.Eventually(t, "the reason names the refused connection", func() error {
		clock.advance(time.Millisecond)
		if ok, reason := source.Health(); !ok || !strings.Contains(reason, "connection refused") {
			return fmt.Errorf("%v, %q", ok, reason)
		}
		return nil
	})
	clock.advance(time.Hour)
	if ok, reason := source.Health(); ok || !strings.Contains(reason, "expired") {
		t.Errorf("after the expiry: health = %v, %q", ok, reason)
	}
	if source.Current().Leaf.SerialNumber.String() != first {
		t.Error("the last valid certificate is not served")
	}
	ca.life = 24 * time.Hour
	ca.listen(t, address, nil)
	advanceToRotation(t, clock, source, first)
}

func TestTokenAndRootsAreReadForEachCall(t *testing.T) {
	dir := t.TempDir()
	server, stranger := testpki.New(t, "server"), testpki.New(t, "stranger")
	token, roots := filepath.Join(dir, "token"), filepath.Join(dir, "root-cert.pem")
	write(t, roots, stranger.PEM())
	ca := newAuthority(t)
	address, _ := ca.listen(t, "127.0.0.1:0", server.ServerConfig(t, "istiod.istio-system.svc"))
	config := caConfig(address)
	config.CAServer = CAServer{TokenFile: token, TLS: TLS{RootFile: roots, ServerName: "istiod.istio-system.svc"}}
	source := newSource(t, config)
	runSource(t, source)
	expect := func(part string) {
		t.Helper()
		testenv.Eventually(t, "the reason contains "+part, func() error {
			if ok, reason := source.Health(); ok || !strings.Contains(reason, part) {
				return errors.New(reason)
			}
			return nil
		})
	}
	expect("the token file " + token + " does not exist")
	write(t, token, []byte("abc\n"))
	expect("unknown authority")
	write(t, roots, server.PEM())
	nextSerial(t, source, "")
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if len(ca.tokens) != 1 || ca.tokens[0] != "Bearer abc" {
		t.Errorf("the authority received the tokens %q", ca.tokens)
	}
}

func TestTrustFileAddsRootsAndIsWatched(t *testing.T) {
	dir := t.TempDir()
	more, later := testpki.New(t, "more"), testpki.New(t, "later")
	file := filepath.Join(dir, "root-cert.pem")
	ca := newAuthority(t)
	write(t, file, append(ca.root.PEM(), more.PEM()...))
	ca.set(func(csr *x509.CertificateRequest) ([]string, error) { return []string{ca.sign(ca.root, csr, nil)}, nil })
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	config := caConfig(address)
	config.TrustFile, config.Debounce = file, time.Millisecond
	source := newSource(t, config)
	runSource(t, source)
	nextSerial(t, source, "")
	has := func(a *testpki.Authority) bool {
		return bytes.Contains(source.Current().Roots, bytes.TrimSpace(a.PEM()))
	}
	if !has(ca.root) || !has(more) {
		t.Error("the roots of the trust file are missing")
	}
	notified := make(chan struct{}, 10)
	source.Subscribe(func() {
		if has(later) {
			notified <- struct{}{}
		}
	})
	for _, broken := range []struct{ text, reason string }{
		{"not a certificate", "no PEM"}, {string(ca.root.PEM()) + string(more.PEM()[:200]), "incomplete"},
	} {
		write(t, file, []byte(broken.text))
		testenv.Eventually(t, "the broken file is reported", func() error {
			if ok, reason := source.Health(); !ok || !strings.Contains(reason, file) || !strings.Contains(reason, broken.reason) {
				return fmt.Errorf("%v, %q", ok, reason)
			}
			return nil
		})
		if !has(ca.root) || !has(more) {
			t.Error("the last valid roots are not served")
		}
	}
	write(t, file, append(ca.root.PEM(), later.PEM()...))
	<-notified
	if !has(later) || has(more) {
		t.Error("the change of the trust file is not in force")
	}
}

func TestIntermediatesAreServedAfterTheCertificate(t *testing.T) {
	ca := newAuthority(t)
	middle := ca.root.Intermediate(t, "middle")
	ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
		return []string{ca.sign(middle, csr, nil), string(middle.PEM()), string(ca.root.PEM())}, nil
	})
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	source := newSource(t, caConfig(address))
	runSource(t, source)
	nextSerial(t, source, "")
	m := source.Current()
	chain, err := parseCertificates(m.Chain)
	if err != nil || len(chain) != 2 || chain[1].Subject.CommonName != "middle" || !bytes.Equal(m.Roots, ca.root.PEM()) {
		t.Errorf("chain of %d (%v), roots:\n%s", len(chain), err, m.Roots)
	}
}

// CAs backdate certificates for machines with slow clocks. The time before the response is not part of the lifetime.
func TestLifetimeStartsAtNotBefore(t *testing.T) {
	ca := newAuthority(t)
	ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
		edit := func(c *x509.Certificate) { c.NotBefore = time.Now().Add(-2 * ca.life) }
		return []string{ca.sign(ca.root, csr, edit), string(ca.root.PEM())}, nil
	})
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	source := newSource(t, caConfig(address))
	runSource(t, source)
	nextSerial(t, source, "")
	if next := time.Until(source.NextRotation()); next < 25*time.Minute || next > 35*time.Minute {
		t.Errorf("the lifetime is one hour, and the next rotation is in %v", next)
	}
}

// A certificate can be verified only with its intermediate, so the earlier of the two expiries is used.
func TestCertificateIsRotatedBeforeItsIntermediateExpires(t *testing.T) {
	ca := newAuthority(t)
	ca.life = 24 * time.Hour
	between := ca.root.Intermediate(t, "between")
	between.Cert = ca.root.Sign(t, &x509.Certificate{
		Subject: between.Cert.Subject, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(20 * time.Minute),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, between.Key.Public())
	ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
		return []string{ca.sign(between, csr, nil), string(between.PEM()), string(ca.root.PEM())}, nil
	})
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	clock := newFakeClock()
	config := caConfig(address)
	config.Clock = clock
	source := newSource(t, config)
	registry := prometheus.NewRegistry()
	if _, err := New(Config{Socket: "unused", Source: source, Metrics: registry}); err != nil {
		t.Fatal(err)
	}
	runSource(t, source)
	nextSerial(t, source, "")
	if next := source.NextRotation().Sub(clock.Now()); next > 15*time.Minute {
		t.Errorf("the next rotation is in %v", next)
	}
	if left := readExpiryMetric(t, registry); left <= 0 || left > (20*time.Minute).Seconds() {
		t.Errorf("the metric says %v s", left)
	}
	ca.set(func(*x509.CertificateRequest) ([]string, error) { return nil, status.Error(codes.Unavailable, "away") })
	clock.advance(21 * time.Minute)
	testenv.Eventually(t, "the expiry is reported", func() error {
		if ok, reason := source.Health(); ok || !strings.Contains(reason, "expired") {
			return fmt.Errorf("%v %q", ok, reason)
		}
		return nil
	})
}

func TestCAConfigurationIsChecked(t *testing.T) {
	for name, change := range map[string]func(*CAConfig){
		"no port":      func(c *CAConfig) { c.Address = "istiod" },
		"no namespace": func(c *CAConfig) { c.Namespace = "" },
		"key":          func(c *CAConfig) { c.Key = "DSA" },
		"ratio":        func(c *CAConfig) { c.GraceRatio = 2 },
	} {
		config := caConfig("a:1")
		change(&config)
		if _, err := NewCASource(config); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzCAResponse verifies arbitrary responses of a CA. They may be rejected, but must not panic.
func FuzzCAResponse(f *testing.F) {
	ca := testpki.New(f, "root")
	cert, _ := ca.Workload(f, identity)
	f.Add(string(cert), string(ca.PEM()))
	f.Add("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "")
	source, err := NewCASource(caConfig("a:1"))
	if err != nil {
		f.Fatal(err)
	}
	if source.key, err = newKeyPair(ECDSAP256, false); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, leaf, root string) {
		if _, err := source.checkResponse([]string{leaf, root}); err == nil {
			t.Error("a response for another key is accepted")
		}
	})
}
