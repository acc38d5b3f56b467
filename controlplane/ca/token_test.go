package ca

import (
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// signToken signs any claims with any key.
func signToken(t testing.TB, alg jose.SignatureAlgorithm, key any, claims any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// tokenKeyOf returns the private key with which an authority signs tokens.
func tokenKeyOf(t testing.TB, a *Authority) *ecdsa.PrivateKey {
	t.Helper()
	key, err := readTokenKey(a.store)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func goodClaims(a *Authority) map[string]any {
	now := a.now().Unix()
	return map[string]any{
		"iss": "spiffe://" + a.trustDomain, "sub": "system:serviceaccount:shop:reviews", "aud": "istio-ca",
		"iat": now, "exp": now + 3600,
	}
}

func TestTokenIdentifiesItsServiceAccount(t *testing.T) {
	a := load(t, t.TempDir(), Options{TrustDomain: "mesh.example"})
	token, err := a.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	id, err := a.VerifyToken(token)
	if err != nil || id.SPIFFEID() != "spiffe://mesh.example/ns/shop/sa/reviews" {
		t.Errorf("the token proves %v, %v", id, err)
	}
}

// Istio's agents and the Kubernetes libraries parse tokens of this format.
func TestTokenHasTheFormatOfKubernetesTokens(t *testing.T) {
	a := load(t, t.TempDir(), Options{})
	token, err := a.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	decode := func(part string) map[string]any {
		data, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]any{}
		if err := json.Unmarshal(data, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	parts := strings.Split(token, ".")
	header, claims := decode(parts[0]), decode(parts[1])
	if header["alg"] != "ES256" || header["typ"] != "JWT" || header["kid"] == "" || header["jwk"] != nil {
		t.Errorf("the token's header is %v", header)
	}
	if claims["sub"] != "system:serviceaccount:shop:reviews" || claims["aud"] != "istio-ca" {
		t.Errorf("the token's claims are %v", claims)
	}
	if claims["exp"].(float64)-claims["iat"].(float64) != 3600 {
		t.Errorf("the token is valid from %v to %v", claims["iat"], claims["exp"])
	}
}

func TestTokenExpires(t *testing.T) {
	now := newClock()
	a := load(t, t.TempDir(), Options{Clock: now.time})
	token, err := a.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	now.advance(time.Hour - 2*time.Second)
	if _, err := a.VerifyToken(token); err != nil {
		t.Errorf("just before its expiry: %v", err)
	}
	now.advance(2 * time.Second)
	_, err = a.VerifyToken(token)
	wantError(t, err, "expired at", "issue a new one")
}

func TestTokenFromASlightlyFastClockIsAccepted(t *testing.T) {
	now := newClock()
	a := load(t, t.TempDir(), Options{Clock: now.time})
	now.advance(90 * time.Second)
	token, err := a.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	now.advance(-90 * time.Second)
	if _, err := a.VerifyToken(token); err != nil {
		t.Error(err)
	}
}

func TestInvalidTokensAreRefused(t *testing.T) {
	a := load(t, t.TempDir(), Options{})
	key := tokenKeyOf(t, a)
	other := load(t, t.TempDir(), Options{})
	foreign, err := other.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	with := func(name string, value any) string {
		claims := goodClaims(a)
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
		return signToken(t, jose.ES256, key, claims)
	}
	good := signToken(t, jose.ES256, key, goodClaims(a))
	if _, err := a.VerifyToken(good); err != nil {
		t.Fatalf("the unmodified token: %v", err)
	}
	parts := strings.Split(good, ".")
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	now := a.now().Unix()
	for name, c := range map[string]struct{ token, want string }{
		"empty":             {"", "not a JWT"},
		"no token":          {"abc", "not a JWT"},
		"too large":         {good + strings.Repeat("A", maxToken), "at most"},
		"another CA's":      {foreign, "not signed by this authority"},
		"the root's key":    {signToken(t, jose.ES256, a.signing().issuer.key, goodClaims(a)), "not signed by this authority"},
		"expired":           {with("exp", now-1), "expired at"},
		"never expires":     {with("exp", nil), "no expiry"},
		"not valid yet":     {with("nbf", now+3600), "not valid yet"},
		"of the future":     {with("iat", now+3600), "future"},
		"wrong audience":    {with("aud", "vault"), "audience"},
		"no audience":       {with("aud", nil), "audience"},
		"wrong issuer":      {with("iss", "spiffe://other.example"), "issuer"},
		"no issuer":         {with("iss", nil), "issuer"},
		"no subject":        {with("sub", nil), "subject"},
		"a user":            {with("sub", "system:admin"), "subject"},
		"no account":        {with("sub", "system:serviceaccount:shop"), "subject"},
		"empty account":     {with("sub", "system:serviceaccount:shop:"), "subject"},
		"empty namespace":   {with("sub", "system:serviceaccount::reviews"), "subject"},
		"slash in account":  {with("sub", "system:serviceaccount:shop:a/sa/b"), "subject"},
		"colon in account":  {with("sub", "system:serviceaccount:shop:a:b"), "subject"},
		"alg none":          {part(`{"alg":"none"}`) + "." + parts[1] + ".", "not a JWT"},
		"alg none, signed":  {part(`{"alg":"none"}`) + "." + parts[1] + "." + parts[2], "not a JWT"},
		"no signature":      {parts[0] + "." + parts[1] + ".", "not signed by this authority"},
		"changed":           {parts[0] + "." + part(`{"sub":"system:serviceaccount:shop:admin"}`) + "." + parts[2], "not signed by this authority"},
		"HMAC, root as key": {signToken(t, jose.HS256, a.RootPEM(), goodClaims(a)), "not a JWT"},
		"own key in it":     {tokenWithEmbeddedKey(t, a), "not signed by this authority"},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := a.VerifyToken(c.token)
			wantError(t, err, c.want)
			if id != (Identity{}) {
				t.Errorf("the token is accepted and proves %v", id)
			}
		})
	}
}

// tokenWithEmbeddedKey contains its own public key in the header, which a verifier must not trust.
func tokenWithEmbeddedKey(t testing.TB, a *Authority) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: newKey(t)}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(goodClaims(a)).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokensWithAdditionalAudiencesAreAccepted(t *testing.T) {
	a := load(t, t.TempDir(), Options{})
	claims := goodClaims(a)
	claims["aud"] = []string{"vault", "istio-ca"}
	if _, err := a.VerifyToken(signToken(t, jose.ES256, tokenKeyOf(t, a), claims)); err != nil {
		t.Error(err)
	}
}

func TestTokensWithInvalidNamesOrLifetimesAreNotIssued(t *testing.T) {
	a := load(t, t.TempDir(), Options{})
	for _, c := range []struct {
		namespace, account string
		ttl                time.Duration
	}{
		{"", "b", time.Hour}, {"a", "", time.Hour}, {"a/b", "c", time.Hour}, {"a", "b/c", time.Hour}, {"a", "b:c", time.Hour},
		{"a", "..", time.Hour}, {"a", "b", 0}, {"a", "b", -time.Hour}, {"a", "b", MaxTokenTTL + time.Second},
	} {
		if token, err := a.IssueToken(c.namespace, c.account, c.ttl); err == nil {
			t.Errorf("requesting a lifetime of %v returned the token %s", c, token)
		}
	}
}

func FuzzVerifyToken(f *testing.F) {
	a := load(f, f.TempDir(), Options{})
	good, err := a.IssueToken("shop", "reviews", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-4])
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add(`{"payload":"e30","signatures":[]}`)
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		id, err := a.VerifyToken(token)
		if err == nil && id != (Identity{DefaultTrustDomain, "shop", "reviews"}) {
			t.Errorf("the token %q proves %v, for which no token was issued", token, id)
		}
	})
}
