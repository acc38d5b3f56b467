package translate_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// tokenIssuer signs tokens for end users.
type tokenIssuer struct {
	t      testing.TB
	name   string
	key    *ecdsa.PrivateKey
	signer jose.Signer
}

func newTokenIssuer(t testing.TB, name string) *tokenIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "one"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &tokenIssuer{t, name, key, signer}
}

func (i *tokenIssuer) jwks() string {
	data, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: "one", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		i.t.Fatal(err)
	}
	return string(data)
}

// token returns a token of the issuer with additional claims.
func (i *tokenIssuer) token(claims map[string]any) string {
	all := map[string]any{"iss": i.name, "sub": "alice", "exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	text, err := jwt.Signed(i.signer).Claims(all).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

func (i *tokenIssuer) rules(more string) string {
	return fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: %s, namespace: back}
spec: {selector: {matchLabels: {app: server}}, jwtRules: [{issuer: %q, jwks: '%s'%s}]}
`, strings.NewReplacer(".", "-", "/", "-", ":", "-").Replace(i.name), i.name, i.jwks(), more)
}

// TestRequestAuthentication: only tokens with a valid signature of their issuer are accepted.
func TestRequestAuthentication(t *testing.T) {
	forEachEnvoyVersion(t, 173001, func(t *testing.T, version string, network int) {
		one, two := newTokenIssuer(t, "https://one.example/a"), newTokenIssuer(t, "two")
		stranger := newTokenIssuer(t, "three")
		w := newTestEnv(t, version, network, pair, one.rules(", audiences: [shop], outputClaimToHeaders: [{header: x-sub, claim: sub}]"),
			two.rules(", fromHeaders: [{name: x-token, prefix: 'T '}], fromParams: [tok], fromCookies: [crumb], forwardOriginalToken: true, outputPayloadToHeader: x-payload"))
		w.serveApp("NET.2.2:8080", "server", func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "served sub=%s auth=%q token=%q payload=%q", r.Header.Get("X-Sub"), r.Header.Get("Authorization"), r.Header.Get("X-Token"), r.Header.Get("X-Payload"))
		})
		w.proxy(serverNode, "back/server")
		ask := func(path string, headers ...string) func() httpResult {
			return func() httpResult { return w.request("", "http://NET.2.1:8080"+path, headers...) }
		}
		bearer := func(i *tokenIssuer, claims map[string]any) string { return "Authorization=Bearer " + i.token(claims) }
		shop := map[string]any{"aud": "shop"}

		w.expect(200, "served sub= ", ask("/", "X-Sub=forged"))
		w.expect(200, `served sub=alice auth=""`, ask("/", bearer(one, shop), "X-Sub=forged"))
		w.expect(403, "Audience", ask("/", bearer(one, map[string]any{"aud": "other"})))
		w.expect(401, "", ask("/", bearer(one, map[string]any{"aud": "shop", "exp": time.Now().Add(-time.Hour).Unix()})))
		w.expect(401, "issuer", ask("/", bearer(stranger, nil)))
		stranger.name = two.name
		w.expect(401, "", ask("/", "X-Token=T "+stranger.token(nil)))
		w.expect(401, "", ask("/", "Authorization=Bearer nonsense"))
		w.expect(200, `token="T `, ask("/", "X-Token=T "+two.token(nil)))
		w.expect(200, `payload="ey`, ask("/?tok="+two.token(nil)))
		w.expect(200, `payload="ey`, ask("/", "Cookie=crumb="+two.token(nil)))
		// A valid token does not compensate for an invalid second one.
		w.expect(200, "sub=alice", ask("/", bearer(one, shop), "X-Token=T "+two.token(nil)))
		w.expect(401, "", ask("/", bearer(one, shop), "X-Token=T "+stranger.token(nil)))

		w.change(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tokens, namespace: back}
spec:
  rules:
  - {to: [{operation: {paths: [/any]}}], from: [{source: {requestPrincipals: ["*"]}}]}
  - {to: [{operation: {paths: [/alice]}}], from: [{source: {requestPrincipals: ["https://one.example/a/alice"]}}]}
  - {to: [{operation: {paths: [/one]}}], from: [{source: {requestPrincipals: ["https://one.example/*"]}}]}
  - {to: [{operation: {paths: [/suffix]}}], from: [{source: {requestPrincipals: ["*/bob"]}}]}
  - {to: [{operation: {paths: [/not]}}], from: [{source: {notRequestPrincipals: ["two/*"]}}]}
  - {to: [{operation: {paths: [/group]}}], when: [{key: "request.auth.claims[groups]", values: [admin, "ops-*"]}]}
  - {to: [{operation: {paths: [/nested]}}], when: [{key: "request.auth.claims[realm][roles]", values: [admin]}]}
  - {to: [{operation: {paths: [/scope]}}], when: [{key: "request.auth.claims[scope]", values: [write]}]}
  - {to: [{operation: {paths: [/audience]}}], when: [{key: request.auth.audiences, values: [shop]}]}
  - {to: [{operation: {paths: [/presenter]}}], when: [{key: request.auth.presenter, values: [app]}]}
  - {to: [{operation: {paths: [/notgroup]}}], when: [{key: "request.auth.claims[groups]", notValues: [admin]}]}
`)
		token := func(claims map[string]any) string { return "X-Token=T " + two.token(claims) }
		for _, tc := range []struct {
			path, header string
			code         int
		}{
			{"/any", "", 403}, {"/any", token(nil), 200},
			{"/alice", bearer(one, shop), 200}, {"/alice", token(nil), 403}, {"/alice", token(map[string]any{"sub": "https://one.example/a/alice"}), 403},
			{"/one", bearer(one, shop), 200}, {"/one", token(nil), 403},
			{"/suffix", token(map[string]any{"sub": "bob"}), 200}, {"/suffix", token(map[string]any{"sub": "bobby"}), 403},
			{"/not", "", 200}, {"/not", token(nil), 403}, {"/not", bearer(one, shop), 200},
			{"/group", token(map[string]any{"groups": []string{"users", "ops-east"}}), 200}, {"/group", token(map[string]any{"groups": "admin"}), 200},
			{"/group", token(map[string]any{"groups": []string{"administrators"}}), 403}, {"/group", "", 403},
			{"/nested", token(map[string]any{"realm": map[string]any{"roles": []string{"admin"}}}), 200}, {"/nested", token(map[string]any{"realm": "admin"}), 403},
			{"/scope", token(map[string]any{"scope": "read write"}), 200}, {"/scope", token(map[string]any{"scope": "read writer"}), 403},
			{"/audience", bearer(one, map[string]any{"aud": []string{"x", "shop"}}), 200}, {"/audience", token(nil), 403},
			{"/presenter", token(map[string]any{"azp": "app"}), 200}, {"/presenter", token(nil), 403},
			{"/notgroup", token(map[string]any{"groups": "admin"}), 403}, {"/notgroup", "", 200},
		} {
			var headers []string
			if tc.header != "" {
				headers = []string{tc.header}
			}
			w.expect(tc.code, "", ask(tc.path, headers...))
		}

		// First the control plane has not fetched the keys, then it has. Two rules have the same issuer.
		remote := newTokenIssuer(t, "https://remote.example")
		w.change(strings.Replace(one.rules(""), "jwtRules: [", `jwtRules: [{issuer: "https://remote.example", jwksUri: "https://remote.example/keys"}, {issuer: "https://one.example/a", jwksUri: "https://remote.example/others"}, `, 1))
		w.expect(401, "", ask("/any", bearer(remote, nil)))
		w.expect(200, "", ask("/any", bearer(one, nil)))
		w.keys = &snapshot.KeySets{ByAddress: map[string]string{"https://remote.example/keys": remote.jwks()}}
		change := w.rebuild(keys(nil))
		w.pushed(change)
		w.expect(200, "", ask("/any", bearer(remote, nil)))
		w.expect(200, "", ask("/any", bearer(one, nil)))
		w.expect(401, "", ask("/any", bearer(stranger, nil)))
	})
}

// TestProxiesFetchKeysFromMeshServices if the mesh enables that. Tokens are rejected until the proxy has fetched the
// keys. The control plane fetches keys from addresses that are not mesh services.
func TestProxiesFetchKeysFromMeshServices(t *testing.T) {
	forEachEnvoyVersion(t, 173007, func(t *testing.T, version string, network int) {
		inside, outside, stranger := newTokenIssuer(t, "inside"), newTokenIssuer(t, "outside"), newTokenIssuer(t, "inside")
		w := newTestEnv(t, version, network, pair, `
apiVersion: v1
kind: Service
metadata: {name: issuer, namespace: back}
spec: {selector: {app: issuer}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: issuer-1, namespace: back}
spec: {address: NET.3.1, labels: {app: issuer}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: back}
spec: {selector: {matchLabels: {app: server}}, jwtRules: [{issuer: inside, jwksUri: "http://issuer.back/keys"}, {issuer: outside, jwksUri: "https://outside.example/keys"}]}
`)
		w.keysByProxy, w.keys = true, &snapshot.KeySets{ByAddress: map[string]string{"https://outside.example/keys": outside.jwks()}}
		w.snap = snapshot.Build(nil, w.inputs(), nil)
		w.plane.push(pushState{snap: w.snap}, snapshot.Change{Full: true})
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy(serverNode, "back/server")
		ask := func(i *tokenIssuer) func() httpResult {
			return func() httpResult { return w.request("", "http://NET.2.1:8080/", "Authorization=Bearer "+i.token(nil)) }
		}
		w.expect(200, "server", ask(outside))
		w.expect(200, "server", func() httpResult { return w.request("", "http://NET.2.1:8080/") })
		w.expect(401, "", ask(inside))

		requested := make(chan string, 100)
		w.serveApp("NET.3.1:8080", "issuer", func(rw http.ResponseWriter, r *http.Request) {
			requested <- r.Host + r.URL.Path
			fmt.Fprint(rw, inside.jwks())
		})
		w.expect(200, "server", ask(inside))
		if got := <-requested; got != "issuer.back/keys" {
			t.Errorf("the proxy requested %s, which the control plane should fetch", got)
		}
		w.expect(401, "", ask(stranger))
		w.expect(200, "server", ask(outside)) // both rules read the same token location
		stranger.name = "another"
		w.expect(401, "", ask(stranger))
	})
}

// TestGatewaysRouteByClaims of verified tokens only.
func TestGatewaysRouteByClaims(t *testing.T) {
	forEachEnvoyVersion(t, 173011, func(t *testing.T, version string, network int) {
		issuer, stranger := newTokenIssuer(t, "one"), newTokenIssuer(t, "one")
		w := newTestEnv(t, version, network, pair, strings.Replace(issuer.rules(""), "app: server", "istio: edge", 1), `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: back}
spec: {selector: {istio: edge}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: claims, namespace: back}
spec:
  hosts: ["*"]
  gateways: [edge]
  http:
  - {match: [{headers: {"@request.auth.claims.groups": {exact: admin}}}], directResponse: {status: 200, body: {string: group}}}
  - {match: [{headers: {"@request.auth.claims[realm.access][roles]": {prefix: ops-}}}], directResponse: {status: 200, body: {string: nested}}}
  - {match: [{headers: {"@request.auth.claims.email": {regex: ".*@example.com"}}}], directResponse: {status: 200, body: {string: email}}}
  - {match: [{headers: {"@request.auth.claims.scope": {exact: write}}}], directResponse: {status: 200, body: {string: scope}}}
  - {match: [{headers: {"@request.auth.claims.tenant": {}}}], directResponse: {status: 200, body: {string: tenant}}}
  - {match: [{uri: {prefix: /anybody}, withoutHeaders: {"@request.auth.claims.sub": {exact: mallory}}}], directResponse: {status: 200, body: {string: anybody}}}
`)
		w.proxy("router edge.back NET.5.1 istio=edge", "back/edge")
		ask := func(path string, headers ...string) func() httpResult {
			return func() httpResult { return w.request("", "http://NET.5.1:8080"+path, headers...) }
		}
		with := func(claims map[string]any) string { return "Authorization=Bearer " + issuer.token(claims) }
		for want, claims := range map[string]map[string]any{
			"group":  {"groups": []string{"users", "admin"}},
			"nested": {"realm.access": map[string]any{"roles": []string{"ops-1"}}},
			"email":  {"email": "a@example.com"},
			"scope":  {"scope": "read write"},
			"tenant": {"tenant": "t"},
		} {
			w.expect(200, want, ask("/", with(claims)))
		}
		w.expect(200, "group", ask("/", with(map[string]any{"groups": "admin"})))
		w.expect(404, "", ask("/"))
		w.expect(404, "", ask("/", with(nil)))
		w.expect(404, "", ask("/", with(map[string]any{"groups": "administrator"})))
		w.expect(401, "", ask("/", "Authorization=Bearer "+stranger.token(map[string]any{"groups": "admin"})))
		w.expect(200, "anybody", ask("/anybody"))
		w.expect(200, "anybody", ask("/anybody", with(nil)))
		w.expect(404, "", ask("/anybody", with(map[string]any{"sub": "mallory"})))
	})
}
