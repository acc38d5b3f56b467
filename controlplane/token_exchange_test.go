package controlplane_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/sts"
)

// verifier returns an HTTP client that trusts the mesh's root.
func (p *testServer) verifier() *http.Client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.Authority().RootPEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	return &http.Client{Timeout: 5 * time.Second, Transport: transport}
}

func (p *testServer) fetch(address string, into any) {
	p.t.Helper()
	response, err := p.verifier().Get(address)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		p.t.Fatalf("%s answers %s", address, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		p.t.Fatal(err)
	}
}

type tokenResponse struct {
	Access      string `json:"access_token"`
	IssuedType  string `json:"issued_token_type"`
	ExpiresIn   int    `json:"expires_in"`
	Error       string `json:"error"`
	Description string `json:"error_description"`
}

// requestToken exchanges a token. change replaces fields of a valid form.
func (p *testServer) requestToken(subject string, change url.Values) (status int, a tokenResponse) {
	p.t.Helper()
	form := url.Values{"grant_type": {sts.GrantType}, "subject_token": {subject}, "subject_token_type": {sts.JWTType},
		"audience": {"https://orders.example"}}
	for name, values := range change {
		form[name] = values
	}
	response, err := p.verifier().PostForm("https://"+p.TokensAddr().String()+sts.TokenPath, form)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		p.t.Fatal(err)
	}
	return response.StatusCode, a
}

func (p *testServer) subjectToken(namespace, account string) string {
	p.t.Helper()
	token, err := p.Authority().IssueToken(namespace, account, time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	return token
}

func TestExchangedTokenIsVerifiableByDiscovery(t *testing.T) {
	p := start(t, controlplane.Config{Ports: freePorts})
	status, got := p.requestToken(p.subjectToken("shop", "web"), nil)
	if status != http.StatusOK || got.IssuedType != sts.JWTType || got.ExpiresIn < 3500 || got.ExpiresIn > 3600 {
		t.Fatalf("got %d %+v", status, got)
	}
	issuer := "https://" + p.TokensAddr().String()
	var document struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	p.fetch(issuer+"/.well-known/openid-configuration", &document)
	var keys jose.JSONWebKeySet
	p.fetch(document.Keys, &keys)
	parsed, err := jwt.ParseSigned(got.Access, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := parsed.Claims(keys, &claims); err != nil {
		t.Fatalf("the published keys do not verify it: %v", err)
	}
	expected := jwt.Expected{Issuer: issuer, Subject: "spiffe://cluster.local/ns/shop/sa/web",
		AnyAudience: jwt.Audience{"https://orders.example"}, Time: time.Now()}
	if err := claims.ValidateWithLeeway(expected, 0); err != nil || document.Issuer != issuer {
		t.Errorf("%v: the token is %+v, the discovery document %+v", err, claims, document)
	}
}

func TestPublishedKeysAreWithoutTheirPrivateParts(t *testing.T) {
	p := start(t, controlplane.Config{Ports: freePorts})
	var keys struct {
		Keys []map[string]any `json:"keys"`
	}
	p.fetch("https://"+p.TokensAddr().String()+"/openid/v1/jwks", &keys)
	if len(keys.Keys) != 1 || keys.Keys[0]["x"] == nil || keys.Keys[0]["d"] != nil {
		t.Errorf("the published keys are %v", keys.Keys)
	}
}

func TestExchangedTokenIsRefusedByTheControlPlane(t *testing.T) {
	p := start(t, controlplane.Config{Ports: freePorts})
	_, got := p.requestToken(p.subjectToken("shop", "web"), nil)
	if id, err := p.Authority().VerifyToken(got.Access); err == nil {
		t.Errorf("the token proves %s", id)
	}
	if status, again := p.requestToken(got.Access, nil); status != http.StatusBadRequest || again.Error != sts.CodeInvalidRequest {
		t.Errorf("the exchanged token was accepted as a subject token: %d %+v", status, again)
	}
}

func TestTokenExchangesThatAreRefused(t *testing.T) {
	p, other := start(t, controlplane.Config{Ports: freePorts}), start(t, controlplane.Config{Ports: freePorts})
	good := p.subjectToken("shop", "web")
	for name, row := range map[string]struct {
		subject string
		change  url.Values
		code    string
		message string
	}{
		"a token of another authority": {other.subjectToken("shop", "web"), nil, sts.CodeInvalidRequest, "not signed by this authority"},
		"no token":                     {"", nil, sts.CodeInvalidRequest, "subject_token"},
		"no audience":                  {good, url.Values{"audience": nil}, sts.CodeInvalidTarget, "no audience"},
		"the authority's own audience": {good, url.Values{"audience": {"https://orders.example", "istio-ca"}}, sts.CodeInvalidTarget, "istio-ca"},
		"too many audiences":           {good, url.Values{"audience": strings.Split(strings.Repeat("a ", 17), " ")}, sts.CodeInvalidTarget, "17"},
		"a too long audience":          {good, url.Values{"audience": {strings.Repeat("a", 3000)}}, sts.CodeInvalidTarget, "2048"},
		"an actor token": {good, url.Values{"actor_token": {good}, "actor_token_type": {sts.JWTType}},
			sts.CodeInvalidRequest, "actor_token"},
		"a certificate":      {good, url.Values{"requested_token_type": {"urn:example:x509"}}, sts.CodeInvalidRequest, "requested_token_type"},
		"another grant type": {good, url.Values{"grant_type": {"client_credentials"}}, sts.CodeUnsupportedGrantType, "grant_type"},
	} {
		status, got := p.requestToken(row.subject, row.change)
		if status != http.StatusBadRequest || got.Error != row.code || !strings.Contains(got.Description, row.message) || got.Access != "" {
			t.Errorf("%s: got %d %+v, want 400 %s with %q", name, status, got, row.code, row.message)
		}
	}
}

func TestIssuerURLIsTheBaseOfTheKeys(t *testing.T) {
	p := start(t, controlplane.Config{Ports: freePorts, TokenIssuer: "https://mesh.example"})
	var document map[string]any
	p.fetch("https://"+p.TokensAddr().String()+"/.well-known/openid-configuration", &document)
	if document["issuer"] != "https://mesh.example" || document["jwks_uri"] != "https://mesh.example/openid/v1/jwks" {
		t.Errorf("the discovery document is %v", document)
	}
	for _, issuer := range []string{"mesh.example", "http://mesh.example", "https://mesh.example/a", "https://u:p@mesh.example"} {
		_, err := controlplane.New(controlplane.Config{StateDir: t.TempDir(), Ports: freePorts, TokenIssuer: issuer})
		if err == nil || !strings.Contains(err.Error(), "is not a URL: use a URL") {
			t.Errorf("%s: %v", issuer, err)
		}
	}
}
