package translate_test

import (
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestGRPCServersDenyUnsupportedConditions: an ALLOW rule with a condition that gRPC cannot evaluate allows nothing,
// and such a DENY rule denies everything. gRPC treats the tested headers as missing, and the SNI as empty.
func TestGRPCServersDenyUnsupportedConditions(t *testing.T) {
	t.Parallel()
	const all = `{"permissions":[{"any":true}],"principals":[{"any":true}]}`
	for _, c := range []struct {
		action, when string
		want         []string
		not          string
	}{
		{"DENY", `{key: connection.sni, values: [secret.example]}`, []string{all}, "secret.example"},
		{"ALLOW", `{key: connection.sni, notValues: [secret.example]}`, nil, "secret.example"},
		{"DENY", `{key: "request.headers[host]", values: [a]}`, []string{all}, `"host"`},
		{"DENY", `{key: "request.headers[:path]", values: [/a]}`, []string{all}, `":path"`},
		{"DENY", `{key: "request.headers[x-id-bin]", values: [a]}`, []string{all}, "x-id-bin"},
		{"ALLOW", `{key: "request.headers[x-id-bin]", notValues: [a]}`, nil, "x-id-bin"},
		{"DENY", `{key: "request.auth.claims[team]", values: [a]}`, []string{all}, "team"},
		{"ALLOW", `{key: "request.auth.claims[team]", notValues: [a]}`, nil, "team"},
		{"DENY", `{key: "request.headers[X-Role]", values: [guest]}`, []string{`"name":"x-role"`}, "X-Role"},
	} {
		m := newTestMesh(t, nil, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: default}
spec: {action: `+c.action+`, rules: [{when: [`+c.when+`]}]}
`)
		p := &translate.Proxy{Namespace: "default", Proxyless: true, Address: netip.MustParseAddr("127.0.0.1")}
		got, err := translate.Proxyless(m.snap, p, xds.ListenerType, []string{"xds.istio.io/grpc/lds/inbound/127.0.0.1:7001"})
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		data, err := protojson.Marshal(got[0].Body)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), " ", "")
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s %s: %s is missing in %s", c.action, c.when, want, text)
			}
		}
		if strings.Contains(text, c.not) {
			t.Errorf("%s %s: unexpected %s in %s", c.action, c.when, c.not, text)
		}
		if !strings.Contains(text, "rbac") {
			t.Errorf("%s %s: the listener enforces no policy: %s", c.action, c.when, text)
		}
	}
}

// TestGRPCOmitsRoutesWithClaims: gRPC would ignore the unknown condition, and use the route for all requests.
func TestGRPCOmitsRoutesWithClaims(t *testing.T) {
	t.Parallel()
	m := newTestMesh(t, nil, `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: default}
spec: {selector: {app: a}, ports: [{name: grpc, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: default}
spec:
  hosts: [a]
  http:
  - {name: with, match: [{headers: {"@request.auth.claims.groups": {exact: admin}}}], route: [{destination: {host: a}}]}
  - {name: without, match: [{withoutHeaders: {"@request.auth.claims.groups": {exact: admin}}}], route: [{destination: {host: a}}]}
`)
	p := &translate.Proxy{Namespace: "default", Proxyless: true, Address: netip.MustParseAddr("127.0.0.1")}
	got, err := translate.Proxyless(m.snap, p, xds.RouteType, []string{"a:80"})
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	data, err := protojson.Marshal(got[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.ReplaceAll(string(data), " ", ""); strings.Contains(text, `"with"`) || strings.Contains(text, "claims") || strings.Contains(text, "groups") || !strings.Contains(text, `"without"`) {
		t.Error(text)
	}
}
