package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

const testIssuer = "https://kubernetes.default.svc.cluster.local"

// testIssuerKey returns a key with which the API server of these tests signs tokens.
var testIssuerKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// keySet returns a JWK set of public keys.
func keySet(t testing.TB, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fakeDocuments are the documents of an API server by path.
type fakeDocuments struct {
	mu        sync.Mutex
	documents map[string][]byte
	fetches   int // of the keys
	err       error
}

func (f *fakeDocuments) fetch(_ context.Context, path string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if path == tokenKeysPath {
		f.fetches++
	}
	return f.documents[path], f.err
}

func (f *fakeDocuments) set(keys []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.documents, f.err = map[string][]byte{discoveryPath: []byte(`{"issuer":"` + testIssuer + `"}`), tokenKeysPath: keys}, err
}

func (f *fakeDocuments) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fetches
}

// fakeClock is a clock that only a test advances.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.Now()} }

func (c *fakeClock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fakeLive has one pod, shop/reviews-1, with the account reviews.
type fakeLive struct{ podUID, podAccount, accountUID string }

func (f fakeLive) FindPod(namespace, name string) (uid, account string, found bool) {
	return f.podUID, f.podAccount, f.podUID != "" && namespace == "shop" && name == "reviews-1"
}

func (f fakeLive) FindAccount(namespace, name string) (uid string, found bool) {
	return f.accountUID, f.accountUID != "" && namespace == "shop" && name == "reviews"
}

// fakeCluster is a verifier whose API server is fake, and which counts TokenReviews. They refuse each token.
type fakeCluster struct {
	*tokenVerifier
	documents *fakeDocuments
	clock     *fakeClock
	reviews   int
}

func newFakeCluster(t testing.TB) *fakeCluster {
	t.Helper()
	c := &fakeCluster{documents: &fakeDocuments{}, clock: newFakeClock()}
	c.documents.set(keySet(t, jose.JSONWebKey{Key: testIssuerKey().Public(), KeyID: "k1", Algorithm: "RS256", Use: "sig"}), nil)
	keys := newTokenKeys(nil, slog.New(slog.DiscardHandler))
	keys.fetch, keys.now = c.documents.fetch, c.clock.time
	reviews := newTokenReviews(nil, []string{ca.TokenAudience})
	reviews.now = c.clock.time
	reviews.post = func(_ context.Context, r *authenticationv1.TokenReview) error {
		c.reviews++
		r.Status.Error = "reviewed and refused"
		return nil
	}
	c.tokenVerifier = &tokenVerifier{
		keys: keys, reviews: reviews, audiences: []string{ca.TokenAudience}, now: c.clock.time,
		live: fakeLive{podUID: "pod-uid", podAccount: "reviews", accountUID: "account-uid"},
	}
	return c
}

// goodClaims returns the claims of a valid token of the pod reviews-1.
func (c *fakeCluster) goodClaims() map[string]any {
	now := c.clock.time().Unix()
	return map[string]any{
		"iss": testIssuer, "sub": "system:serviceaccount:shop:reviews", "aud": []string{"istio-ca"}, "iat": now, "nbf": now, "exp": now + 3600,
		"kubernetes.io": map[string]any{
			"namespace": "shop", "serviceaccount": boundObject{"reviews", "account-uid"}, "pod": boundObject{"reviews-1", "pod-uid"},
		},
	}
}

// setClaim returns a copy of claims with another value of a claim; nil removes it. A name may have a second part in
// kubernetes.io.
func setClaim(claims map[string]any, name string, value any) map[string]any {
	out := maps.Clone(claims)
	if inner, ok := strings.CutPrefix(name, "kubernetes.io/"); ok {
		out["kubernetes.io"] = setClaim(claims["kubernetes.io"].(map[string]any), inner, value)
		return out
	}
	if out[name] = value; value == nil {
		delete(out, name)
	}
	return out
}

func sign(t testing.TB, algorithm jose.SignatureAlgorithm, key any, claims map[string]any, header map[jose.HeaderKey]any) string {
	t.Helper()
	options := &jose.SignerOptions{ExtraHeaders: header}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, options)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func signed(t testing.TB, claims map[string]any) string {
	t.Helper()
	return sign(t, jose.RS256, jose.JSONWebKey{Key: testIssuerKey(), KeyID: "k1"}, claims, nil)
}

func TestTokenOfALivePodIsAcceptedWithoutAReview(t *testing.T) {
	c := newFakeCluster(t)
	got, err := c.VerifyToken(t.Context(), signed(t, c.goodClaims()))
	if err != nil || got.Namespace != "shop" || got.ServiceAccount != "reviews" || !strings.Contains(got.Proof, "pod shop/reviews-1 (pod-uid)") {
		t.Errorf("the token proves %+v, %v", got, err)
	}
	if c.reviews != 0 {
		t.Errorf("%d TokenReviews, want 0", c.reviews)
	}
}

func TestForgedTokensAreRefusedWithoutAReview(t *testing.T) {
	c := newFakeCluster(t)
	good := c.goodClaims()
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := testIssuerKey().Public()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	kid := map[jose.HeaderKey]any{"kid": "k1"}
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	payload, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(signed(t, good), ".")
	now := c.clock.time()
	for name, test := range map[string]struct{ token, reason string }{
		"empty":                         {"", "not a JWT"},
		"opaque":                        {"sha256~abcdef", "not a JWT"},
		"no signature":                  {part(`{"alg":"none","kid":"k1"}`) + "." + part(string(payload)) + ".", "not a JWT"},
		"no signature, JSON":            {`{"payload":"` + parts[1] + `","signatures":[{"protected":"` + parts[0] + `","signature":"` + parts[2] + `"}]}`, "not a JWT"},
		"HMAC with the public key, PEM": {sign(t, jose.HS256, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), good, kid), "not a JWT"},
		"HMAC with the public key, DER": {sign(t, jose.HS256, der, good, kid), "not a JWT"},
		"another algorithm":             {sign(t, jose.ES256, curve, good, kid), "algorithm"},
		"PSS":                           {sign(t, jose.PS256, testIssuerKey(), good, kid), "not a JWT"},
		"another hash":                  {sign(t, jose.RS512, testIssuerKey(), good, kid), "algorithm"},
		"a stranger's key":              {sign(t, jose.RS256, stranger, good, kid), "signature is invalid"},
		"an embedded key":               {embedded(t, stranger, good), "key"},
		"an unknown key":                {sign(t, jose.RS256, jose.JSONWebKey{Key: stranger, KeyID: "k2"}, good, nil), "key"},
		"modified claims":               {parts[0] + "." + part(strings.Replace(string(payload), "shop:reviews", "shop:billing", 1)) + "." + parts[2], "signature is invalid"},
		"another header":                {part(`{"alg":"RS256","kid":"k1","x":1}`) + "." + parts[1] + "." + parts[2], "signature is invalid"},
		"a critical extension":          {part(`{"alg":"RS256","kid":"k1","crit":["x"],"x":1}`) + "." + parts[1] + "." + parts[2], ""},
		"expired":                       {signed(t, setClaim(good, "exp", now.Add(-time.Second).Unix())), "expired at"},
		"no expiry":                     {signed(t, setClaim(good, "exp", nil)), "no expiry"},
		"not yet valid":                 {signed(t, setClaim(good, "nbf", now.Add(time.Hour).Unix())), "time of the control plane"},
		"another audience":              {signed(t, setClaim(good, "aud", []string{"vault"})), `audience ["vault"]`},
		"audience of the API server":    {signed(t, setClaim(good, "aud", []string{testIssuer})), "audience"},
		"many audiences":                {signed(t, setClaim(good, "aud", strings.Split(strings.Repeat("x,", 2000), ","))), "audience"},
		"no audience":                   {signed(t, setClaim(good, "aud", nil)), "audience"},
		"another subject":               {signed(t, setClaim(good, "sub", "system:serviceaccount:shop:billing")), "bound to the service account"},
		"another namespace":             {signed(t, setClaim(good, "sub", "system:serviceaccount:bank:reviews")), "bound to the service account"},
		"another account":               {signed(t, setClaim(setClaim(good, "sub", "system:serviceaccount:shop:billing"), "kubernetes.io/serviceaccount", boundObject{"billing", "account-uid"})), `has the service account "reviews"`},
	} {
		got, err := c.VerifyToken(t.Context(), test.token)
		if err == nil || !strings.Contains(err.Error(), test.reason) || len(err.Error()) > 1000 {
			t.Errorf("%s: %+v, %v; want the reason %q", name, got, err, test.reason)
		}
	}
	if c.reviews != 0 {
		t.Errorf("forged tokens caused %d TokenReviews, want 0", c.reviews)
	}
	if fetches := c.documents.count(); fetches > 2 {
		t.Errorf("forged tokens caused %d fetches of keys", fetches)
	}
	if _, err := c.VerifyToken(t.Context(), signed(t, good)); err != nil {
		t.Errorf("afterwards a valid token is refused: %v", err)
	}
}

// embedded returns a token that contains the public key of its own signer.
func embedded(t *testing.T, key *rsa.PrivateKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	object, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := object.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTokenWithoutAKnownLiveObjectIsReviewed(t *testing.T) {
	live := fakeLive{podUID: "pod-uid", podAccount: "reviews", accountUID: "account-uid"}
	for name, test := range map[string]struct {
		live   fakeLive
		change func(map[string]any) map[string]any
		reason string
	}{
		"pod of the same name":  {live: fakeLive{podUID: "other", podAccount: "reviews", accountUID: "account-uid"}, reason: "does not exist any more"},
		"unknown pod":           {live: fakeLive{accountUID: "account-uid"}, reason: "does not exist any more"},
		"account created again": {live: fakeLive{podUID: "pod-uid", podAccount: "reviews", accountUID: "other"}, reason: "does not exist any more"},
		"no pod":                {live: live, change: func(c map[string]any) map[string]any { return setClaim(c, "kubernetes.io/pod", nil) }, reason: "refuses the token"},
		"no binding":            {live: live, change: func(c map[string]any) map[string]any { return setClaim(c, "kubernetes.io", nil) }, reason: "refuses the token"},
		"second issuer":         {live: live, change: func(c map[string]any) map[string]any { return setClaim(c, "iss", "https://old.example") }, reason: "refuses the token"},
	} {
		c := newFakeCluster(t)
		c.live = test.live
		claims := c.goodClaims()
		if test.change != nil {
			claims = test.change(claims)
		}
		got, err := c.VerifyToken(t.Context(), signed(t, claims))
		if err == nil || !strings.Contains(err.Error(), test.reason) || !strings.Contains(err.Error(), "reviewed and refused") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if c.reviews != 1 {
			t.Errorf("%s: %d TokenReviews, want 1", name, c.reviews)
		}
	}
}

func TestReplacedKeyIsFetchedAndRemovedKeyIsForgotten(t *testing.T) {
	c := newFakeCluster(t)
	if _, err := c.VerifyToken(t.Context(), signed(t, c.goodClaims())); err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.documents.set(keySet(t, jose.JSONWebKey{Key: curve.Public(), KeyID: "k2", Algorithm: "ES256"}), nil)
	rotated := sign(t, jose.ES256, jose.JSONWebKey{Key: curve, KeyID: "k2"}, c.goodClaims(), nil)
	if _, err := c.VerifyToken(t.Context(), rotated); !errors.Is(err, ca.ErrUnavailable) {
		t.Errorf("an unknown key immediately after a fetch: %v; the client must be able to try again", err)
	}
	c.clock.advance(minKeyFetchInterval)
	if _, err := c.VerifyToken(t.Context(), rotated); err != nil {
		t.Errorf("a token of the new key: %v", err)
	}
	if _, err := c.VerifyToken(t.Context(), signed(t, c.goodClaims())); err == nil {
		t.Error("a token of the removed key is accepted")
	}
}

func TestKnownKeysStayInUseWithoutAPIServer(t *testing.T) {
	c := newFakeCluster(t)
	if _, err := c.VerifyToken(t.Context(), signed(t, c.goodClaims())); err != nil {
		t.Fatal(err)
	}
	c.documents.set(nil, errors.New("connection refused"))
	c.clock.advance(time.Hour)
	if err := c.keys.refresh(t.Context()); err == nil {
		t.Fatal("the fetch succeeds")
	}
	if _, err := c.VerifyToken(t.Context(), signed(t, c.goodClaims())); err != nil {
		t.Errorf("without API server a token of a known key is refused: %v", err)
	}
	c.clock.advance(time.Hour)
	other := sign(t, jose.RS256, jose.JSONWebKey{Key: testIssuerKey(), KeyID: "k2"}, c.goodClaims(), nil)
	if _, err := c.VerifyToken(t.Context(), other); !errors.Is(err, ca.ErrUnavailable) {
		t.Errorf("without API server an unknown key is refused with %v, want ErrUnavailable", err)
	}
}

func TestWithoutKeysEachTokenIsReviewed(t *testing.T) {
	c := newFakeCluster(t)
	c.documents.set(nil, errors.New("forbidden"))
	token := signed(t, c.goodClaims())
	if err := c.keys.refresh(t.Context()); err == nil {
		t.Fatal("the fetch succeeds")
	}
	if _, err := c.VerifyToken(t.Context(), token); err == nil || !strings.Contains(err.Error(), "reviewed and refused") || c.reviews != 1 {
		t.Errorf("%d TokenReviews, %v", c.reviews, err)
	}
}

func TestUnknownKeysCauseFewFetches(t *testing.T) {
	c := newFakeCluster(t)
	var running sync.WaitGroup
	for i := range 200 {
		token := sign(t, jose.RS256, jose.JSONWebKey{Key: testIssuerKey(), KeyID: fmt.Sprint("random", i%20)}, c.goodClaims(), nil)
		running.Go(func() {
			if _, err := c.VerifyToken(t.Context(), token); err == nil {
				t.Error("a token of an unknown key is accepted")
			}
		})
	}
	running.Wait()
	if fetches := c.documents.count(); fetches != 1 {
		t.Errorf("%d fetches, want 1", fetches)
	}
}

func TestUnusableKeySetsAreRefused(t *testing.T) {
	private := keySet(t, jose.JSONWebKey{Key: testIssuerKey(), KeyID: "k1"})
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	long := &rsa.PublicKey{N: newModulus(t, 16384), E: 65537}
	var many []jose.JSONWebKey
	for i := range maxKeys + 1 {
		many = append(many, jose.JSONWebKey{Key: testIssuerKey().Public(), KeyID: fmt.Sprint(i)})
	}
	for name, set := range map[string][]byte{
		"no JSON":       []byte("<html>"),
		"no keys":       []byte(`{"keys":[]}`),
		"symmetric key": []byte(`{"keys":[{"kty":"oct","kid":"k1","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}]}`),
		"private key":   private,
		"short key":     keySet(t, jose.JSONWebKey{Key: short.Public(), KeyID: "k1"}),
		"long key":      keySet(t, jose.JSONWebKey{Key: long, KeyID: "k1"}),
		"no key ID":     keySet(t, jose.JSONWebKey{Key: testIssuerKey().Public()}),
		"encryption":    keySet(t, jose.JSONWebKey{Key: testIssuerKey().Public(), KeyID: "k1", Use: "enc"}),
		"too many keys": keySet(t, many...),
	} {
		if keys, err := parseTokenKeys(set); err == nil {
			t.Errorf("%s: %d keys are accepted", name, len(keys))
		}
	}
	mixed := []byte(`{"keys":[{"kty":"future","kid":"x"},` + strings.TrimSuffix(strings.TrimPrefix(string(keySet(t, jose.JSONWebKey{Key: testIssuerKey().Public(), KeyID: "k1"})), `{"keys":[`), `]}`) + `]}`)
	if keys, err := parseTokenKeys(mixed); err != nil || len(keys) != 1 {
		t.Errorf("a set with an unknown key type: %d keys, %v", len(keys), err)
	}
}

// newModulus returns an odd number with the specified number of bits.
func newModulus(t *testing.T, bits uint) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), bits-1))
	if err != nil {
		t.Fatal(err)
	}
	return n.SetBit(n.SetBit(n, int(bits-1), 1), 0, 1)
}
