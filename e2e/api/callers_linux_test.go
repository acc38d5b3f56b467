package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// TestPoliciesMatchCallers covers policies that match the properties of callers, other than refusal by name.
func TestPoliciesMatchCallers(t *testing.T) {
	guarded := []string{"guarded"}
	strictIn := func(namespace string) string {
		return "\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: $HOST, namespace: " + namespace + "}\nspec: {mtls: {mode: STRICT}}\n"
	}
	runRows(t, []row{
		{name: "strict for a namespace", ports: []string{"http"}, exclusive: []string{"other"}, docs: strictIn("other") + `---
apiVersion: v1
kind: Service
metadata: {name: $HOST, namespace: other}
spec: {selector: {app: other}, ports: [{name: http, port: 80, targetPort: 8080}]}
`, check: func(w *testMesh, host string) error {
			if _, err := w.expectStatus(200, "client", "http://"+host+".other/"); err != nil {
				return err
			}
			if err := checkRefused(w.get("", "http://"+w.instance("other").Proxy.String()+":8080/")); err != nil {
				return err
			}
			return checkServed(w.get("", "http://"+w.instance("v1").Proxy.String()+":8080/")) // in another namespace
		}},
		{name: "strict for the mesh", ports: []string{"http"}, exclusive: guarded, mesh: "# alone in it\n", docs: strictIn("istio-system"), check: func(w *testMesh, _ string) error {
			if err := w.checkAnswers(answer{from: "", status: noAnswer}, answer{from: "client", status: 200}); err != nil {
				return err
			}
			return checkRefused(w.get("", "http://"+w.instance("other").Proxy.String()+":8080/"))
		}},
		{name: "custom asks by grpc", exclusive: guarded, docs: policy(`action: CUSTOM, provider: {name: asked-grpc}, rules: [{to: [{operation: {ports: ["8080", "9000"]}}]}]`),
			check: func(w *testMesh, _ string) error {
				got, err := w.expectStatus(200, "other", "http://guarded.default/", "X-Allow", "1", "X-Asked", "forged")
				if err != nil || got.Echo.Header.Get("X-Asked") != "yes" {
					return fmt.Errorf("%s %w", toJSON(got), err)
				}
				if err := w.checkAnswers(answer{from: "client", status: 403}); err != nil {
					return err
				}
				return errors.Join(w.checkTCP("client", portTCP, true), w.checkTCP("other", portTCP, false), w.checkTCP("other", portServerFirst, true))
			}},
		{name: "dry run refuses nobody", exclusive: guarded, docs: strings.Replace(policy(`action: DENY, rules: [{}]`), "{name: $HOST}", `{name: $HOST, annotations: {"istio.io/dry-run": "true"}}`, 1),
			check: func(w *testMesh, _ string) error {
				return errors.Join(w.checkAnswers(answer{from: "client", status: 200}, answer{from: "", status: 200}), w.checkTCP("client", portTCP, true))
			}},
		{name: "names of former trust domains", exclusive: guarded, docs: policy(`rules: [{from: [{source: {principals: [former.example/ns/default/sa/client]}}]}]`),
			check: func(w *testMesh, _ string) error {
				return errors.Join(w.checkAnswers(answer{from: "client", status: 200}, answer{from: "other", status: 403}), w.checkTCP("client", portTCP, true), w.checkTCP("other", portTCP, false))
			}},
		{name: "names of foreign trust domains", exclusive: guarded, docs: policy(`rules: [{from: [{source: {principals: [foreign.example/ns/default/sa/client]}}]}]`),
			check: func(w *testMesh, _ string) error {
				return errors.Join(w.checkAnswers(answer{from: "client", status: 403}), w.checkTCP("client", portTCP, false))
			}},
		{name: "addresses of callers", exclusive: guarded, docs: policy(`action: DENY, rules: [{from: [{source: {ipBlocks: [$CLIENT/32]}}]}, {when: [{key: source.ip, values: [192.0.2.0/24]}]}]`),
			check: func(w *testMesh, _ string) error {
				forged := []string{"X-Forwarded-For", "192.0.2.1"}
				return errors.Join(w.checkAnswers(answer{from: "client", status: 403}, answer{from: "other", status: 200}, answer{from: "other", headers: forged, status: 200}),
					w.checkTCP("client", portTCP, false), w.checkTCP("other", portTCP, true))
			}},
	})
}

// TestKeysOfIssuersAreFetched by the control plane.
func TestKeysOfIssuersAreFetched(t *testing.T) {
	good, stranger := newIssuer(t, "https://fetched.example"), newIssuer(t, "https://fetched.example")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/keys":
			fmt.Fprint(w, good.keys)
		case "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": "http://" + r.Host, "jwks_uri": "http://" + r.Host + "/keys"})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	authentication := func(rule string) string {
		return "\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: $HOST}\nspec: {selector: {matchLabels: {app: guarded}}, jwtRules: [" + rule + "]}\n"
	}
	discovered := *good
	discovered.name = server.URL
	foreign := *stranger
	foreign.name = server.URL
	check := func(good, stranger *issuer) func(w *testMesh, _ string) error {
		return func(w *testMesh, _ string) error {
			return w.checkAnswers(answer{from: "client", status: 200, headers: good.bearer(nil)}, answer{from: "client", status: 401, headers: stranger.bearer(nil)}, answer{from: "client", status: 200})
		}
	}
	runRows(t, []row{
		{name: "keys by url", exclusive: []string{"guarded"}, docs: authentication(fmt.Sprintf("{issuer: %q, jwksUri: %q}", good.name, server.URL+"/keys")), check: check(good, stranger)},
		{name: "keys at the name of the machine", exclusive: []string{"guarded"}, docs: authentication(fmt.Sprintf("{issuer: %q, jwksUri: %q}", good.name, strings.Replace(server.URL, "127.0.0.1", mesh.HostName, 1)+"/keys")), check: check(good, stranger)},
		{name: "keys by discovery", exclusive: []string{"guarded"}, docs: authentication(fmt.Sprintf("{issuer: %q}", server.URL)), check: check(&discovered, &foreign)},
	})
}
