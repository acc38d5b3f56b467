package ca

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// memoryStore is a Store in memory.
type memoryStore struct {
	mu       sync.Mutex
	stored   *Material
	tokenKey []byte
	writes   int
	// beforeReplace is called by Replace before it compares versions.
	beforeReplace func()
}

func (s *memoryStore) Location() string { return "memory" }
func (s *memoryStore) Remedy() string   { return "create the store again" }

func (s *memoryStore) Read(context.Context) (Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored == nil {
		return Material{}, fs.ErrNotExist
	}
	return *s.stored, nil
}

func (s *memoryStore) Create(_ context.Context, m Material, tokenKey []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored == nil {
		s.write(m)
		s.tokenKey = tokenKey
	}
	return nil
}

func (s *memoryStore) write(m Material) {
	s.writes++
	m.Version = strconv.Itoa(s.writes)
	s.stored = &m
}

func (s *memoryStore) Replace(_ context.Context, previous, next Material) error {
	if s.beforeReplace != nil {
		s.beforeReplace()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored.Version != previous.Version {
		return ErrConflict
	}
	s.write(next)
	return nil
}

func (s *memoryStore) TokenKey(context.Context) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return File{"token key", s.tokenKey}, nil
}

func open(t testing.TB, store Store, opts Options) *Authority {
	t.Helper()
	a, err := Open(store, opts)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAuthoritiesOfOneStoreAgree(t *testing.T) {
	store := &memoryStore{}
	roots := make(chan string, 8)
	for range cap(roots) {
		go func() {
			a, err := Open(store, Options{})
			if err != nil {
				roots <- err.Error()
				return
			}
			roots <- string(a.RootPEM())
		}()
	}
	first := <-roots
	for range cap(roots) - 1 {
		if got := <-roots; got != first {
			t.Errorf("two control planes have different roots: %s and %s", first, got)
		}
	}
	token, err := open(t, store, Options{}).IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, store, Options{}).VerifyToken(token); err != nil {
		t.Errorf("the other control plane refuses a token: %v", err)
	}
}

// Two control planes find the same step due. Both compute it from the same state; only one of them writes.
func TestDueStepIsExecutedOnceByTwoControlPlanes(t *testing.T) {
	clock, store := newClock(), &memoryStore{}
	one := open(t, store, Options{Clock: clock.time})
	two := open(t, store, Options{Clock: clock.time})
	clock.advance(rootTTL - DefaultRotateBefore + time.Hour)
	m, _, err := one.reload()
	if err != nil {
		t.Fatal(err)
	}
	store.beforeReplace = func() {
		store.beforeReplace = nil
		if changed, err := two.rotateWhenDue(m, false); err != nil || !changed {
			t.Errorf("the second control plane: %v, %v", changed, err)
		}
	}
	if changed, err := one.rotateWhenDue(m, false); err != nil || changed {
		t.Errorf("the first control plane: %v, %v", changed, err)
	}
	if store.writes != 2 || store.stored.Announced == nil {
		t.Errorf("the store was written %d times, want 2: %+v", store.writes, store.stored)
	}
	if changed, err := one.Reload(); err != nil || !changed || !bytes.Equal(one.RootPEM(), two.RootPEM()) {
		t.Errorf("after the conflict: %v, %v", changed, err)
	}
}

// istioMaterial is a self-signed CA with an RSA key and without a trust domain, as istiod creates it.
func istioMaterial(t testing.TB) Material {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{Organization: []string{"cluster.local"}}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(rootTTL), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return Material{Version: "1", Active: KeyPair{
		Certificate: File{"ca-cert.pem", pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})},
		Key:         File{"ca-key.pem", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})},
	}}
}

func TestRootOfIstioSignsAndRotates(t *testing.T) {
	tokenKey, err := NewTokenKey()
	if err != nil {
		t.Fatal(err)
	}
	m := istioMaterial(t)
	store := &memoryStore{stored: &m, tokenKey: tokenKey}
	a := open(t, store, Options{TrustDomain: "mesh.example"})
	if a.TrustDomain() != "mesh.example" || !bytes.Equal(a.RootPEM(), m.Active.Certificate.Data) {
		t.Errorf("the authority has trust domain %s and the roots %s", a.TrustDomain(), a.RootPEM())
	}
	issue := func() *x509.Certificate {
		t.Helper()
		cert, err := a.signWorkload(Identity{"mesh.example", "shop", "reviews"}, newKey(t).Public(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	verify := func(cert *x509.Certificate, roots []byte) error {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(roots)
		_, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err
	}
	old := issue()
	if err := verify(old, m.Active.Certificate.Data); err != nil {
		t.Errorf("members of Istio's mesh do not trust a certificate: %v", err)
	}
	for _, want := range []RotationStep{Announce, Activate, Retire} {
		before := a.RootPEM()
		if step, err := a.Rotate(true); err != nil || step != want {
			t.Fatalf("%s: %s, %v", want, step, err)
		}
		if want == Retire {
			break
		}
		for _, roots := range [][]byte{before, a.RootPEM()} {
			if err := verify(old, roots); err != nil {
				t.Errorf("after %s: %v", want, err)
			}
		}
		if err := verify(issue(), a.RootPEM()); err != nil {
			t.Errorf("after %s: %v", want, err)
		}
	}
	if verify(old, a.RootPEM()) == nil {
		t.Error("the retired root is still trusted")
	}
}

func TestDamagedMaterialNamesThePartAndTheRemedy(t *testing.T) {
	other := istioMaterial(t)
	for name, change := range map[string]func(*Material){
		"ca-cert.pem is damaged":                   func(m *Material) { m.Active.Certificate.Data = []byte("x") },
		"ca-key.pem is damaged":                    func(m *Material) { m.Active.Key.Data = nil },
		"ca-key.pem is not the key of ca-cert.pem": func(m *Material) { m.Active.Key = other.Active.Key },
	} {
		m := istioMaterial(t)
		change(&m)
		_, err := Open(&memoryStore{stored: &m}, Options{})
		wantError(t, err, "memory", name, "backup")
	}
}

// verifierFunc is a TokenVerifier.
type verifierFunc func(token string) (VerifiedToken, error)

func (f verifierFunc) VerifyToken(_ context.Context, token string) (VerifiedToken, error) {
	return f(token)
}

// fromClient returns the context of a call whose metadata contains token.
func fromClient(t *testing.T, token string) context.Context {
	return metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token))
}

func TestTokensOfOtherIssuersReachTheVerifier(t *testing.T) {
	var seen []string
	a := open(t, &memoryStore{}, Options{Tokens: verifierFunc(func(token string) (VerifiedToken, error) {
		seen = append(seen, token)
		switch token {
		case "good":
			return VerifiedToken{Namespace: "shop", ServiceAccount: "reviews", Proof: "token of pod reviews-1"}, nil
		case "odd":
			return VerifiedToken{Namespace: "shop/x", ServiceAccount: "reviews"}, nil
		case "later":
			return VerifiedToken{}, fmt.Errorf("%w: no connection", ErrUnavailable)
		}
		return VerifiedToken{}, errors.New("the pod does not exist")
	})})
	own, err := a.IssueToken("shop", "own", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]struct {
		account string
		code    codes.Code
		reason  string
	}{
		own:                        {account: "own"},
		"good":                     {account: "reviews"},
		"odd":                      {code: codes.Unauthenticated, reason: "shop/x"},
		"later":                    {code: codes.Unavailable, reason: "no connection"},
		"bad":                      {code: codes.Unauthenticated, reason: "the pod does not exist"},
		strings.Repeat("a", 9<<10): {code: codes.Unauthenticated, reason: "at most"},
	} {
		id, err := a.Authenticate(fromClient(t, token))
		if id.ServiceAccount != want.account || status.Code(err) != want.code || !strings.Contains(fmt.Sprint(err), want.reason) {
			t.Errorf("the token %.20q identifies %v, %v; want %+v", token, id, err, want)
		}
	}
	if len(seen) != 4 {
		t.Errorf("the verifier received %d tokens, want 4", len(seen))
	}
}

func TestDeniedAccountIsRefusedWithATokenOfTheVerifier(t *testing.T) {
	a := open(t, &memoryStore{}, Options{Tokens: verifierFunc(func(string) (VerifiedToken, error) {
		return VerifiedToken{Namespace: "shop", ServiceAccount: "reviews"}, nil
	})})
	list, err := ParseDenyList([]byte("accounts: [shop/reviews]"), a.TrustDomain())
	if err != nil {
		t.Fatal(err)
	}
	a.Deny(list)
	if id, err := a.Authenticate(fromClient(t, "any")); err == nil {
		t.Errorf("a denied account is authenticated as %s", id)
	}
}
