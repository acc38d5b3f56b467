package translate_test

import (
	"slices"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// A mesh that changes its trust domain has callees of both names for a while.
func TestCalleeMayProveItsAccountUnderAnAliasOfTheTrustDomain(t *testing.T) {
	mesh := newTestMesh(t, &meshconfig.MeshConfig{TrustDomain: "new.example", TrustDomainAliases: []string{"old.example"}}, `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: default}
spec:
  hosts: [reviews.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, serviceAccount: reviews, labels: {security.istio.io/tlsMode: istio}}]
`)
	p := proxy(t, "sidecar client.default 127.194.1.1 app=client")
	got, err := generate(mesh.snap, p, xds.ClusterType, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(got, func(r *xds.Resource) bool { return r.Name == translate.OutboundCluster("reviews.example", "", 80) })
	if at < 0 {
		t.Fatal("there is no cluster")
	}
	text := renderResource(t, got[at])
	for _, id := range []string{"spiffe://new.example/ns/default/sa/reviews", "spiffe://old.example/ns/default/sa/reviews"} {
		if strings.Count(text, id) != 1 {
			t.Errorf("%s may not answer:\n%s", id, text)
		}
	}
}
