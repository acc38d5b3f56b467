package translate_test

import (
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestCredentialsAreNotSharedBetweenProxies: several proxies have the same scope. Only those that are authenticated
// with an account of the Secret use its certificate, in any order of the proxies. No other cluster waits for the
// certificate.
func TestCredentialsAreNotSharedBetweenProxies(t *testing.T) {
	const may = "sidecar page.shop 127.203.31.1 app=page PROVEN=yes SERVICE_ACCOUNT=page"
	const other = "sidecar pagetwo.shop 127.203.32.1 app=page PROVEN=yes SERVICE_ACCOUNT=other"
	const unproven = "sidecar pagethree.shop 127.203.33.1 app=page SERVICE_ACCOUNT=page"
	for _, order := range [][]string{{may, other, unproven}, {unproven, other, may}, {other, may, unproven}} {
		m := credentialsMesh(t)
		for _, description := range order {
			if got, want := callsWithSecret(t, m.snap, description), description == may; got != want {
				t.Errorf("in the order %q: %s uses the Secret: %t", order, description, got)
			}
		}
	}
}

func callsWithSecret(t *testing.T, snap *snapshot.Snapshot, description string) bool {
	t.Helper()
	list, err := generate(snap, proxy(t, description), xds.ClusterType, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if strings.HasPrefix(r.Name, "outbound|443||pay.example.com") {
			return strings.Contains(string(r.Body.GetValue()), "kubernetes://pay")
		}
	}
	t.Fatalf("%s has no cluster for pay.example.com", description)
	return false
}

// credentialsMesh has a Secret for one account of the namespace shop. Its DestinationRule applies to all callers there.
func credentialsMesh(t *testing.T) *testMesh {
	t.Helper()
	w := &testEnv{testMesh: &testMesh{t: t}, plane: &testControlPlane{ca: newAuthority(t)}}
	secret := w.secretOf("pay", 7, "  ca.crt: |\n"+indent(indent(string(w.plane.ca.pem))))
	return newTestMesh(t, nil, strings.Replace(secret, "namespace: edge", "namespace: shop, annotations: {pilotfish.dev/service-accounts: page}", 1), `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: pay, namespace: shop}
spec: {hosts: [pay.example.com], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: pay, namespace: shop}
spec: {host: pay.example.com, workloadSelector: {matchLabels: {app: page}}, trafficPolicy: {tls: {mode: MUTUAL, credentialName: pay, sni: pay.example.com}}}
`)
}
