package translate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// turns are variations of a proxy. Each differs in one attribute. Several of them may have the same scope.
var turns = []string{
	"", " turned=yes", " INTERCEPTION_MODE=REDIRECT", " HOSTS_APART=yes", " LOCALITY=west/b/2", " LOCALITY=east/a/1 HOSTS_APART=yes",
	" ENVOY_VERSION=1.36.4", " ENVOY_VERSION=1.40.0 INTERCEPTION_MODE=REDIRECT", " ISTIO_VERSION=1.20.0",
	" INTERCEPTION_MODE=REDIRECT INSTANCE_IPS=127.203.99.1,2001:db8::99",
	" PROVEN=yes", " PROVEN=yes SERVICE_ACCOUNT=another",
}

// TestResultsDoNotDependOnOtherProxies: cached resources of other proxies must not change the result.
func TestResultsDoNotDependOnOtherProxies(t *testing.T) {
	for _, tp := range topics(t) {
		shared := snapshot.Build(nil, tp.mesh.inputs(), nil)
		var proxies []string
		for _, description := range tp.proxies {
			for _, turn := range turns {
				if !strings.HasPrefix(description, "router") || !strings.Contains(turn, "INTERCEPTION") {
					proxies = append(proxies, description+turn)
				}
			}
		}
		requested := assignmentNames(t, tp)
		for range 2 { // in this order, then in reverse order
			for _, description := range proxies {
				requestedResources(t, shared, description, requested)
			}
			slices.Reverse(proxies)
		}
		for _, description := range proxies {
			alone := snapshot.Build(nil, tp.mesh.inputs(), nil)
			want, got := requestedResources(t, alone, description, requested), requestedResources(t, shared, description, requested)
			if !slices.Equal(want, got) {
				t.Errorf("%s, %s: the result depends on the proxies that were served before:\n%s", tp.name, description, difference(want, got))
			}
		}
	}
}

// assignmentNames returns a list of load assignment names that is long enough to be cached.
func assignmentNames(t *testing.T, tp topic) []string {
	t.Helper()
	var names []string
	for _, description := range tp.proxies {
		clusters, err := generate(snapshot.Build(nil, tp.mesh.inputs(), nil), proxy(t, description), xds.ClusterType, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range clusters {
			names = append(names, r.Name)
		}
	}
	for i := range 64 {
		names = append(names, fmt.Sprintf("outbound|%d||nobody.example.com", i))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func requestedResources(t *testing.T, snap *snapshot.Snapshot, description string, names []string) []string {
	t.Helper()
	out := listResources(t, snap, description)
	endpoints, err := generate(snap, proxy(t, description), xds.EndpointType, names)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range endpoints {
		out = append(out, "requested "+r.Name+" "+r.Version)
	}
	return out
}

func difference(want, got []string) string {
	var b strings.Builder
	for _, line := range got {
		if !slices.Contains(want, line) {
			fmt.Fprintf(&b, "+ %s\n", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	return b.String()
}

const patchOfOne = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: one, namespace: two}
spec:
  workloadSelector: {labels: {app: x}}
  configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: MERGE, value: {connect_timeout: 77s}}}]
`

func TestClusterPatchesApplyOnlyToTheirWorkload(t *testing.T) {
	m := newTestMesh(t, nil, affectedMesh, patchOfOne)
	clusters := func(snap *snapshot.Snapshot, description string) []string {
		list, err := generate(snap, proxy(t, description), xds.ClusterType, nil)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, r := range list {
			out = append(out, r.Name+" "+r.Version)
		}
		return out
	}
	const patched, plain = "sidecar x.two 127.203.27.1 app=x", "sidecar y.two 127.203.28.1 app=y"
	first, second := clusters(m.snap, patched), clusters(m.snap, plain)
	if want := clusters(newTestMesh(t, nil, affectedMesh).snap, plain); !slices.Equal(want, second) || slices.Equal(first, second) {
		t.Errorf("the result depends on patches of another proxy that was served before:\n%s", difference(want, second))
	}
}

const ruleByNamespace = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: by-namespace, namespace: two}
spec:
  hosts: [b.two.svc.cluster.local]
  http:
  - {match: [{sourceNamespace: one}], directResponse: {status: 418}}
  - {route: [{destination: {host: b.two.svc.cluster.local}}]}
`

// TestNamespacesShareVirtualHostsUnlessRulesDiffer checks which virtual hosts proxies share, and which they must not.
func TestNamespacesShareVirtualHostsUnlessRulesDiffer(t *testing.T) {
	hosts := func(m *testMesh, description string) map[string]*xds.Resource {
		list, err := generate(m.snap, proxy(t, description), xds.VirtualHostType, []string{"80"})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]*xds.Resource{}
		for _, r := range list {
			out[r.Name] = r
		}
		return out
	}
	const rest = " 127.203.27.1 app=x HOSTS_APART=yes INTERCEPTION_MODE=REDIRECT"
	const one, other, ruled = "sidecar x.one" + rest, "sidecar x.three" + rest, "80/b.two.svc.cluster.local:80"
	plain := newTestMesh(t, nil, affectedMesh, strings.Replace(ruleByNamespace, "match: [{sourceNamespace: one}], ", "", 1))
	if a, b := hosts(plain, one)[ruled], hosts(plain, other)[ruled]; a == nil || a != b {
		t.Errorf("two namespaces without rules do not share the virtual hosts %v and %v", a, b)
	}
	apart := newTestMesh(t, nil, affectedMesh, ruleByNamespace)
	if a, b := hosts(apart, one)[ruled], hosts(apart, other)[ruled]; a == nil || b == nil || a.Version == b.Version {
		t.Errorf("a rule for one namespace yields %v in that namespace, and %v in another", a, b)
	}
}
