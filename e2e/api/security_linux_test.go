package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// guardedAt returns the address of a port of the guarded workload, for clients without a sidecar.
func (w *testMesh) guardedAt(port int) string {
	return net.JoinHostPort(w.instance("guarded").Proxy.String(), fmt.Sprint(port))
}

// answer is the response that a caller expects; status 0 means no response.
type answer struct {
	from    string
	status  int
	path    string
	headers []string
}

const noAnswer = 0

// checkAnswers sends requests to the guarded workload: from outside the mesh by its address, from instances by its
// name.
func (w *testMesh) checkAnswers(want ...answer) error {
	for _, a := range want {
		at := "guarded.default"
		if a.from == "" {
			at = w.guardedAt(portHTTP)
		}
		got, err := w.get(a.from, "http://"+at+a.path, a.headers...)
		if err != nil {
			got.Status = noAnswer
		}
		if got.Status != a.status {
			return fmt.Errorf("from %q for %q with %q: %d %s %v, want %d", a.from, a.path, a.headers, got.Status, got.Body, err, a.status)
		}
	}
	return nil
}

// checkTCP fails unless a line sent to a port of the guarded workload is answered as wanted.
func (w *testMesh) checkTCP(from string, port int, want bool) error {
	at := fmt.Sprintf("guarded.default:%d", port)
	if from == "" {
		at = w.guardedAt(port)
	}
	received, err := w.sendLine(from, at, "hello", 1)
	answered := err == nil && strings.HasPrefix(received[0], "guarded ") // and not by a complaint of TLS
	if answered != want {
		return fmt.Errorf("from %q at %s: %q %v", from, at, received, err)
	}
	return nil
}

// canHandshake reports whether a client outside the mesh, with its own certificate, can use mutual TLS with the guarded
// workload, as sidecars do.
func (w *testMesh) canHandshake(certificates ...tls.Certificate) (bool, error) {
	ctx, cancel := context.WithTimeout(w.ctx, requestTimeout)
	defer cancel()
	conn, err := w.Dial(ctx, "", "tcp", w.guardedAt(portHTTP))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"istio-http/1.1", "istio", "http/1.1"}, Certificates: certificates})
	fmt.Fprintf(secured, "GET / HTTP/1.1\r\nHost: guarded\r\n\r\n")
	n, _ := secured.Read(make([]byte, 12))
	return n > 0, nil
}

const strict = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: $HOST}
spec: {selector: {matchLabels: {app: guarded}}, mtls: {mode: STRICT}PORTS}
`

// onlyHTTP is part of the finding on rules that match request properties on TCP ports.
const onlyHTTP = "the condition applies only to HTTP requests"

// policy is an AuthorizationPolicy of the guarded workload.
func policy(spec string) string {
	return `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: $HOST}
spec: {selector: {matchLabels: {app: guarded}}, ` + spec + "}\n"
}

func TestClientsOutsideTheMeshAreRefused(t *testing.T) {
	runRows(t, []row{
		{name: "strict refuses plaintext", exclusive: []string{"guarded"}, docs: strings.Replace(strict, "PORTS", "", 1), check: func(w *testMesh, _ string) error {
			if err := w.checkAnswers(answer{from: "client", status: 200}, answer{from: "other", status: 200}, answer{from: "", status: noAnswer}); err != nil {
				return err
			}
			for _, port := range []int{portTCP, portServerFirst, portUndeclared, portTCP2} {
				if err := w.checkTCP("", port, false); err != nil {
					return err
				}
			}
			if _, err := w.getTLS("", w.guardedAt(portTLS), "server.example"); err == nil {
				return errors.New("TLS of somebody outside of the mesh passes")
			}
			for _, certificates := range [][]tls.Certificate{nil, {w.trustedClient}} {
				if in, err := w.canHandshake(certificates...); err != nil || in {
					return fmt.Errorf("with %d certificates of others: let in %t, %v", len(certificates), in, err)
				}
			}
			if err := w.checkTCP("client", portTCP, true); err != nil {
				return err
			}
			return w.checkTCP("client", portServerFirst, true)
		}},
		{name: "strict but for a port", exclusive: []string{"guarded"}, docs: strings.Replace(strict, "PORTS", ", portLevelMtls: {8080: {mode: PERMISSIVE}, 9000: {mode: DISABLE}}", 1), check: func(w *testMesh, _ string) error {
			return errors.Join(w.checkAnswers(answer{from: "client", status: 200}, answer{from: "", status: 200}),
				w.checkTCP("", portTCP, true), w.checkTCP("client", portTCP, true), w.checkTCP("", portServerFirst, false), w.checkTCP("client", portServerFirst, true))
		}},
		{name: "permissive asks for certificates of the mesh", exclusive: []string{"guarded"}, check: func(w *testMesh, _ string) error {
			if err := w.checkAnswers(answer{from: "", status: 200}); err != nil {
				return err
			}
			for _, certificates := range [][]tls.Certificate{nil, {w.trustedClient}} {
				if in, err := w.canHandshake(certificates...); err != nil || in {
					return fmt.Errorf("with %d certificates of others: let in %t, %v", len(certificates), in, err)
				}
			}
			return nil
		}},
	})
}

func TestPoliciesRefuse(t *testing.T) {
	guarded := []string{"guarded"}
	runRows(t, []row{
		{name: "allow by principal", exclusive: guarded, docs: policy(`rules: [{from: [{source: {principals: [cluster.local/ns/default/sa/client]}}]}]`),
			check: func(w *testMesh, _ string) error {
				forged := []string{"X-Forwarded-Client-Cert", "By=spiffe://cluster.local/ns/default/sa/guarded;URI=spiffe://cluster.local/ns/default/sa/client"}
				if err := w.checkAnswers(answer{from: "client", status: 200}, answer{from: "other", status: 403}, answer{from: "other", status: 403, headers: forged},
					answer{from: "", status: 403}, answer{from: "", status: 403, headers: forged}); err != nil {
					return err
				}
				return errors.Join(w.checkTCP("client", portTCP, true), w.checkTCP("other", portTCP, false), w.checkTCP("", portTCP, false))
			}},
		{name: "allow by namespace", exclusive: guarded, docs: policy(`rules: [{from: [{source: {namespaces: [other]}}]}]`),
			check: func(w *testMesh, _ string) error {
				return w.checkAnswers(answer{from: "client", status: 403}, answer{from: "other", status: 200}, answer{from: "", status: 403})
			}},
		{name: "allow by service account", exclusive: guarded, docs: policy(`rules: [{from: [{source: {serviceAccounts: [client]}}]}]`),
			check: func(w *testMesh, _ string) error {
				return w.checkAnswers(answer{from: "client", status: 200}, answer{from: "other", status: 403}, answer{from: "", status: 403})
			}},
		{name: "allow nothing", exclusive: guarded, docs: policy(``),
			wantProblem: "denies every request", check: func(w *testMesh, _ string) error {
				return errors.Join(w.checkAnswers(answer{from: "client", status: 403}), w.checkTCP("client", portTCP, false))
			}},
		{name: "deny by path however it is written", exclusive: guarded, docs: policy(`action: DENY, rules: [{to: [{operation: {paths: [/admin, /admin/*]}}]}]`),
			wantProblem: onlyHTTP, check: func(w *testMesh, _ string) error {
				for _, path := range []string{"/admin", "/admin?a=b", "/%61dmin", "/x/../admin", "/./admin/y", "/x/%2e%2e/admin", "/admin/%2e/z"} {
					if err := w.checkAnswers(answer{from: "client", path: path, status: 403}); err != nil {
						return err
					}
				}
				return errors.Join(w.checkAnswers(answer{from: "client", path: "/administrators", status: 200}), w.checkTCP("client", portTCP, false))
			}},
		{name: "deny by header whatever its case", exclusive: guarded, docs: policy(`action: DENY, rules: [{when: [{key: "request.headers[X-Secret]", values: ["Yes*"]}], to: [{operation: {ports: ["8080"]}}]}]`),
			check: func(w *testMesh, _ string) error {
				got, err := w.send("client", request{URL: "http://guarded.default", Headers: map[string]string{"x-SECRET": "Yes, please"}, H2: true})
				if err != nil || got.Status != 403 {
					return fmt.Errorf("by HTTP/2: %s %v", toJSON(got), err)
				}
				return errors.Join(w.checkAnswers(answer{from: "client", status: 403, headers: []string{"x-secret", "Yes"}},
					answer{from: "client", status: 200, headers: []string{"X-Secret", "no"}}, answer{from: "client", status: 200}), w.checkTCP("client", portTCP, true))
			}},
		{name: "allow by method lets no connection in", exclusive: guarded, docs: policy(`rules: [{to: [{operation: {methods: [GET]}}]}]`),
			wantProblem: onlyHTTP, check: func(w *testMesh, _ string) error {
				got, err := w.send("client", request{Method: http.MethodPost, URL: "http://guarded.default"})
				if err != nil || got.Status != 403 {
					return fmt.Errorf("by POST: %s %v", toJSON(got), err)
				}
				return errors.Join(w.checkAnswers(answer{from: "client", status: 200}), w.checkTCP("client", portTCP, false))
			}},
		{name: "audit passes", exclusive: guarded, docs: policy(`action: AUDIT, rules: [{}]`),
			check: func(w *testMesh, _ string) error {
				return errors.Join(w.checkAnswers(answer{from: "client", status: 200}, answer{from: "", status: 200}), w.checkTCP("client", portTCP, true))
			}},
		{name: "custom without an authorizer lets nobody in", exclusive: guarded, docs: policy(`action: CUSTOM, provider: {name: away}, rules: [{to: [{operation: {paths: [/asked*]}}]}]`),
			wantProblem: "away", check: func(w *testMesh, _ string) error {
				return w.checkAnswers(answer{from: "client", path: "/asked/x", status: 403}, answer{from: "client", status: 200})
			}},
		{name: "custom with an authorizer that is down lets nobody in", exclusive: guarded, docs: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: $HOST}
spec: {hosts: [down.example], addresses: [240.9.9.9], ports: [{name: http, number: 80, protocol: HTTP}], resolution: STATIC, endpoints: [{address: $V1, ports: {http: 1}}]}
---` + policy(`action: CUSTOM, provider: {name: down}, rules: [{to: [{operation: {paths: [/asked*]}}]}]`),
			check: func(w *testMesh, _ string) error {
				return w.checkAnswers(answer{from: "client", path: "/asked/x", status: 403}, answer{from: "client", status: 200})
			}},
		{name: "custom asks", exclusive: guarded, docs: policy(`action: CUSTOM, provider: {name: asked}, rules: [{to: [{operation: {paths: [/asked*]}}]}]`),
			check: func(w *testMesh, _ string) error {
				refused := []string{"X-Reply-Status", "401"}
				return w.checkAnswers(answer{from: "client", path: "/asked/x", status: 200}, answer{from: "client", path: "/asked/x", status: 401, headers: refused})
			}},
		{name: "custom over tcp needs somebody to ask", exclusive: guarded, docs: policy(`action: CUSTOM, provider: {name: asked}, rules: [{to: [{operation: {ports: ["9000"]}}]}]`), wantProblem: "the provider checks only HTTP requests",
			check: func(w *testMesh, _ string) error {
				return errors.Join(w.checkTCP("client", portTCP, false), w.checkAnswers(answer{from: "client", status: 200}))
			}},
	})
}

// issuer signs tokens of end users.
type issuer struct {
	name   string
	keys   string
	signer jose.Signer
}

func newIssuer(t *testing.T, name string) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: name}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: name, Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{name, string(keys), signer}
}

// bearer is a header with a token of the issuer, with these claims in the place of its own.
func (i *issuer) bearer(claims map[string]any) []string {
	all := map[string]any{"iss": i.name, "sub": "alice", "aud": "shop", "exp": time.Now().Add(time.Hour).Unix(), "groups": []string{"staff"}}
	for k, v := range claims {
		all[k] = v
	}
	text, err := jwt.Signed(i.signer).Claims(all).Serialize()
	if err != nil {
		panic(err)
	}
	return []string{"Authorization", "Bearer " + text}
}

// unsigned is a header with the same token under another algorithm.
func (i *issuer) unsigned(head string) []string {
	parts := strings.Split(i.bearer(nil)[1], ".")
	signature := ""
	if !strings.Contains(head, "none") {
		signature = parts[2]
	}
	return []string{"Authorization", "Bearer " + base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + parts[1] + "." + signature}
}

func TestTokensOfEndUsersAreRefused(t *testing.T) {
	good, second, stranger := newIssuer(t, "https://good.example"), newIssuer(t, "https://second.example"), newIssuer(t, "https://good.example")
	third := newIssuer(t, "https://third.example")
	rule := func(i *issuer, more string) string {
		return fmt.Sprintf(`{issuer: %q, jwks: %q%s}`, i.name, i.keys, more)
	}
	authentication := func(rules ...string) string {
		return `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: $HOST}
spec: {selector: {matchLabels: {app: guarded}}, jwtRules: [` + strings.Join(rules, ", ") + "]}\n---"
	}
	guarded := []string{"guarded"}
	from := func(status int, headers []string) answer {
		return answer{from: "client", status: status, headers: headers}
	}
	runRows(t, []row{
		{name: "a token is needed and has to be good", exclusive: guarded,
			docs: authentication(rule(good, `, audiences: [shop], outputClaimToHeaders: [{header: x-user, claim: sub}]`)) +
				policy(`rules: [{from: [{source: {requestPrincipals: ["https://good.example/*"]}}], when: [{key: "request.auth.claims[groups]", values: [staff]}]}]`),
			wantProblem: onlyHTTP, check: func(w *testMesh, _ string) error {
				if err := w.checkAnswers(from(200, good.bearer(nil)), from(403, nil), from(401, good.bearer(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})),
					from(401, good.bearer(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()})),
					from(401, good.bearer(map[string]any{"iss": "https://other.example"})), from(401, second.bearer(nil)), from(401, stranger.bearer(nil)),
					from(403, good.bearer(map[string]any{"aud": "elsewhere"})), from(403, good.bearer(map[string]any{"groups": "guests"})), from(403, good.bearer(map[string]any{"sub": ""})),
					from(401, good.unsigned(`{"alg":"none"}`)), from(401, good.unsigned(`{"alg":"HS256"}`)), from(401, good.unsigned(`{"alg":"RS256","kid":"https://good.example"}`)),
					from(401, []string{"Authorization", "Bearer x.y.z"}), from(403, []string{"Authorization", "Basic eDp5"}), from(403, []string{"X-User", "alice"}),
				); err != nil {
					return err
				}
				return w.checkTCP("client", portTCP, false)
			}},
		{name: "tokens of several issuers", exclusive: guarded,
			docs:        authentication(rule(good, ""), rule(third, ""), rule(second, `, fromHeaders: [{name: x-second}]`)) + policy(`action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}]}]`),
			wantProblem: onlyHTTP, check: func(w *testMesh, _ string) error {
				header := func(b []string) []string { return []string{"X-Second", strings.TrimPrefix(b[1], "Bearer ")} }
				return w.checkAnswers(from(200, good.bearer(nil)), from(200, third.bearer(nil)), from(200, header(second.bearer(nil))), from(403, nil), from(401, stranger.bearer(nil)), from(401, second.bearer(nil)),
					from(401, header(good.bearer(nil))), from(401, append(header(second.bearer(nil)), stranger.bearer(nil)...)))
			}},
		{name: "a claim in a header is the token's", exclusive: guarded, docs: strings.TrimSuffix(authentication(rule(good, `, outputClaimToHeaders: [{header: x-user, claim: sub}]`)), "---"),
			check: func(w *testMesh, _ string) error {
				for _, headers := range [][]string{good.bearer(nil), nil} {
					want := ""
					if headers != nil {
						want = "alice"
					}
					got, err := w.expectStatus(200, "client", "http://guarded.default", append([]string{"X-User", "mallory"}, headers...)...)
					if err != nil || got.Echo.Header.Get("X-User") != want || len(got.Echo.Header.Values("X-User")) > 1 {
						return fmt.Errorf("the application sees %q, want %q: %v", got.Echo.Header.Values("X-User"), want, err)
					}
				}
				return nil
			}},
		{name: "keys that nobody gives refuse tokens", exclusive: guarded, docs: strings.TrimSuffix(authentication(fmt.Sprintf(`{issuer: %q, jwksUri: "http://127.0.0.1:1/keys"}`, good.name)), "---"),
			wantProblem: "cannot fetch the issuer's keys", check: func(w *testMesh, _ string) error {
				return w.checkAnswers(from(401, good.bearer(nil)), from(200, nil))
			}},
	})
}
