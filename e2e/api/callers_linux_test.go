package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestWhoMayCall: what policies say of callers, beyond who is refused by name.
func TestWhoMayCall(t *testing.T) {
	guarded := []string{"guarded"}
	strictIn := func(namespace string) string {
		return "\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: $HOST, namespace: " + namespace + "}\nspec: {mtls: {mode: STRICT}}\n"
	}
	runRows(t, []row{
		{name: "strict for a namespace", ports: []string{"http"}, alone: []string{"other"}, docs: strictIn("other") + `---
apiVersion: v1
kind: Service
metadata: {name: $HOST, namespace: other}
spec: {selector: {app: other}, ports: [{name: http, port: 80, targetPort: 8080}]}
`, check: func(w *world, host string) error {
			if _, err := w.expect(200, "client", "http://"+host+".other/"); err != nil {
				return err
			}
			if err := refused(w.get("", "http://"+w.instance("other").Proxy.String()+":8080/")); err != nil {
				return err
			}
			return served(w.get("", "http://"+w.instance("v1").Proxy.String()+":8080/")) // in another namespace
		}},
		{name: "strict for the mesh", ports: []string{"http"}, alone: guarded, mesh: "# alone in it\n", docs: strictIn("istio-system"), check: func(w *world, _ string) error {
			if err := w.answers(answer{from: "", status: noAnswer}, answer{from: "client", status: 200}); err != nil {
				return err
			}
			return refused(w.get("", "http://"+w.instance("other").Proxy.String()+":8080/"))
		}},
		{name: "custom asks by grpc", alone: guarded, docs: policy(`action: CUSTOM, provider: {name: asked-grpc}, rules: [{to: [{operation: {ports: ["8080", "9000"]}}]}]`),
			check: func(w *world, _ string) error {
				got, err := w.expect(200, "other", "http://guarded.default/", "X-Allow", "1", "X-Asked", "forged")
				if err != nil || got.Echo.Header.Get("X-Asked") != "yes" {
					return fmt.Errorf("%s %w", toJSON(got), err)
				}
				if err := w.answers(answer{from: "client", status: 403}); err != nil {
					return err
				}
				return errors.Join(w.hears("client", portTCP, true), w.hears("other", portTCP, false), w.hears("other", portServerFirst, true))
			}},
		{name: "dry run refuses nobody", alone: guarded, docs: strings.Replace(policy(`action: DENY, rules: [{}]`), "{name: $HOST}", `{name: $HOST, annotations: {"istio.io/dry-run": "true"}}`, 1),
			check: func(w *world, _ string) error {
				return errors.Join(w.answers(answer{from: "client", status: 200}, answer{from: "", status: 200}), w.hears("client", portTCP, true))
			}},
		{name: "names of former trust domains", alone: guarded, docs: policy(`rules: [{from: [{source: {principals: [former.example/ns/default/sa/client]}}]}]`),
			check: func(w *world, _ string) error {
				return errors.Join(w.answers(answer{from: "client", status: 200}, answer{from: "other", status: 403}), w.hears("client", portTCP, true), w.hears("other", portTCP, false))
			}},
		{name: "names of foreign trust domains", alone: guarded, docs: policy(`rules: [{from: [{source: {principals: [foreign.example/ns/default/sa/client]}}]}]`),
			check: func(w *world, _ string) error {
				return errors.Join(w.answers(answer{from: "client", status: 403}), w.hears("client", portTCP, false))
			}},
		{name: "addresses of callers", alone: guarded, docs: policy(`action: DENY, rules: [{from: [{source: {ipBlocks: [$CLIENT/32]}}]}, {when: [{key: source.ip, values: [192.0.2.0/24]}]}]`),
			check: func(w *world, _ string) error {
				forged := []string{"X-Forwarded-For", "192.0.2.1"}
				return errors.Join(w.answers(answer{from: "client", status: 403}, answer{from: "other", status: 200}, answer{from: "other", headers: forged, status: 200}),
					w.hears("client", portTCP, false), w.hears("other", portTCP, true))
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
	check := func(good, stranger *issuer) func(w *world, _ string) error {
		return func(w *world, _ string) error {
			return w.answers(answer{from: "client", status: 200, headers: good.bearer(nil)}, answer{from: "client", status: 401, headers: stranger.bearer(nil)}, answer{from: "client", status: 200})
		}
	}
	runRows(t, []row{
		{name: "keys by url", alone: []string{"guarded"}, docs: authentication(fmt.Sprintf("{issuer: %q, jwksUri: %q}", good.name, server.URL+"/keys")), check: check(good, stranger)},
		{name: "keys by discovery", alone: []string{"guarded"}, docs: authentication(fmt.Sprintf("{issuer: %q}", server.URL)), check: check(&discovered, &foreign)},
	})
}
