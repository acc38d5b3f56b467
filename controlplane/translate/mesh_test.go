package translate_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// testMesh is a document store and the snapshots that are built from it.
type testMesh struct {
	t     testing.TB
	store *config.MemoryStore
	mesh  *meshconfig.MeshConfig
	keys  *snapshot.KeySets
	// keysByProxy makes proxies fetch the keys of issuers, from the next snapshot on.
	keysByProxy bool
	snap        *snapshot.Snapshot
}

func newTestMesh(t testing.TB, mesh *meshconfig.MeshConfig, documents ...string) *testMesh {
	t.Helper()
	m := &testMesh{t: t, store: config.NewMemoryStore(), mesh: mesh}
	for _, d := range documents {
		m.store.Put(parse(t, d)...)
	}
	m.snap = snapshot.Build(nil, m.inputs(), nil)
	return m
}

func (m *testMesh) inputs() snapshot.Inputs {
	return snapshot.Inputs{Store: m.store, Mesh: m.mesh, Keys: m.keys, KeysByProxy: m.keysByProxy, Endpoints: anyEndpoint}
}

// apply adds documents and builds the next snapshot.
func (m *testMesh) apply(document string) snapshot.Change {
	m.t.Helper()
	resources := parse(m.t, document)
	m.store.Put(resources...)
	return m.rebuild(keys(resources))
}

func (m *testMesh) delete(changed ...config.Key) snapshot.Change {
	m.store.Delete(changed...)
	return m.rebuild(changed)
}

func (m *testMesh) rebuild(changed []config.Key) snapshot.Change {
	prev := m.snap
	m.snap = snapshot.Build(prev, m.inputs(), changed)
	return snapshot.Diff(prev, m.snap, changed)
}

func keys(resources []*config.Resource) []config.Key {
	out := make([]config.Key, len(resources))
	for i, r := range resources {
		out[i] = r.Key
	}
	return out
}

func parse(t testing.TB, document string) []*config.Resource {
	t.Helper()
	resources, problems := config.Parser{Check: envoyfilter.Check}.Parse("test.yaml", []byte(document))
	for _, p := range problems {
		if p.Severity == config.Error {
			t.Fatalf("%v\n%s", p, document)
		}
	}
	return resources
}

func readTestdata(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// node parses the description of a node, and returns the node that an agent would send. Example: "sidecar
// reviews-v1.default 127.203.1.1 app=reviews version=v1". Keys in upper case are metadata, all others are labels.
func node(t testing.TB, description string) *corev3.Node {
	t.Helper()
	words := strings.Fields(description)
	name, namespace, ok := strings.Cut(words[1], ".")
	if !ok {
		t.Fatalf("%q: the node name has no namespace", description)
	}
	labels := map[string]any{}
	metadata := map[string]any{"NAME": name, "NAMESPACE": namespace, "INTERCEPTION_MODE": "NONE", "INSTANCE_IPS": words[2]}
	for _, word := range words[3:] {
		k, v, _ := strings.Cut(word, "=")
		if strings.ToUpper(k) == k || k == "credential" {
			metadata[k] = v
		} else {
			labels[k] = v
		}
	}
	metadata["LABELS"] = labels
	if metadata["INTERCEPTION_MODE"] == "NONE" && words[0] == "sidecar" && metadata["APP_ADDRESS"] == nil {
		metadata["APP_ADDRESS"] = strings.TrimSuffix(words[2], ".1") + ".2"
	}
	s, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	n := &corev3.Node{Cluster: name, Metadata: s, Id: strings.Join([]string{words[0], words[2], words[1], namespace + ".svc.cluster.local"}, "~")}
	if v, ok := metadata["LOCALITY"].(string); ok { // a field of the node, not of its metadata
		parts := append(strings.SplitN(v, "/", 3), "", "")
		n.Locality = &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
	}
	if v, ok := metadata["ENVOY_VERSION"].(string); ok { // used only by tests: Envoy sends its version in another field
		version := &typev3.SemanticVersion{}
		if _, err := fmt.Sscanf(v, "%d.%d.%d", &version.MajorNumber, &version.MinorNumber, &version.Patch); err != nil {
			t.Fatal(err)
		}
		n.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: version}}
	}
	return n
}

func proxy(t testing.TB, description string) *translate.Proxy {
	t.Helper()
	p, err := translate.ParseProxy(node(t, description), "")
	if err != nil {
		t.Fatal(err)
	}
	p.Authenticated = strings.Contains(description, "PROVEN")
	p.UseVHDS = strings.Contains(description, "HOSTS_APART")
	return p
}

func addrFrom(b [4]byte) netip.Addr { return netip.AddrFrom4(b) }

func addrPort(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func sortBy(list []string, rank func(string) string) {
	slices.SortFunc(list, func(a, b string) int { return strings.Compare(rank(a), rank(b)) })
}

// anyEndpoint allows gateways in these tests to call workloads on loopback addresses, as in a local mesh.
var anyEndpoint = &registry.EndpointPolicy{AllowUnix: []string{"/"}, AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
