package translate_test

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// topic is one file of testdata: a mesh, and proxies of which some types are recorded in its golden file. Its first
// lines select them:
//
//	# mesh: {"accessLogFile": "/dev/stdout"}
//	# proxy: sidecar reviews-v1.default 127.203.1.1 app=reviews
//	# show: clusters routes
//	# skip: http_proxy Passthrough
//
// Resources with one of the words after "skip" in their names are omitted.
type topic struct {
	name    string
	mesh    *testMesh
	proxies []string
	show    []string
	skip    []string
}

// withCertificates replaces $CERTIFICATE, $KEY and $AUTHORITY in Secrets.
func withCertificates(text string) string {
	for name, part := range someCertificates() {
		text = strings.ReplaceAll(text, name, part)
	}
	return text
}

var someCertificates = sync.OnceValue(func() map[string]string {
	ca := newAuthority(nil)
	cert, key := ca.issue("spiffe://x/y")
	out := map[string]string{}
	for name, part := range map[string][]byte{"$CERTIFICATE": cert, "$KEY": key, "$AUTHORITY": ca.pem} {
		out[name] = base64.StdEncoding.EncodeToString(part)
	}
	return out
})

var shown = map[string]string{
	"clusters": xds.ClusterType, "endpoints": xds.EndpointType, "listeners": xds.ListenerType, "routes": xds.RouteType, "extensions": xds.ExtensionType,
}

func topics(t *testing.T) []topic {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata contains no topics: %v", err)
	}
	var out []topic
	for _, f := range files {
		if strings.HasSuffix(f, ".golden.yaml") {
			continue
		}
		out = append(out, readTopic(t, strings.TrimSuffix(filepath.Base(f), ".yaml")))
	}
	return out
}

func readTopic(t *testing.T, name string) topic {
	t.Helper()
	text := withCertificates(readTestdata(t, name+".yaml"))
	tp := topic{name: name}
	var mesh *meshconfig.MeshConfig
	for _, line := range strings.Split(text, "\n") {
		key, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": ")
		if !strings.HasPrefix(line, "# ") || !ok {
			continue
		}
		switch key {
		case "mesh":
			mesh = &meshconfig.MeshConfig{}
			if err := protojson.Unmarshal([]byte(value), mesh); err != nil {
				t.Fatal(err)
			}
		case "proxy":
			tp.proxies = append(tp.proxies, value)
		case "show":
			tp.show = strings.Fields(value)
		case "skip":
			tp.skip = strings.Fields(value)
		}
	}
	tp.mesh = newTestMesh(t, mesh, text)
	return tp
}

func TestGoldenConfigurations(t *testing.T) {
	for _, tp := range topics(t) {
		t.Run(tp.name, func(t *testing.T) {
			checkGolden(t, tp.name, tp.render(t))
		})
	}
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden.yaml")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run go test -update", err)
	}
	if got != string(want) {
		t.Errorf("%s differs from the generated configuration. Run go test -update and review the difference.\n%s", file, firstDifference(string(want), got))
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d:\n- %s\n+ %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("the golden file has %d lines, the generated text %d", len(w), len(g))
}

func (tp topic) render(t *testing.T) string {
	var b strings.Builder
	for _, p := range analysis.Check(tp.mesh.snap) {
		fmt.Fprintf(&b, "# %s\n", p)
	}
	for _, description := range tp.proxies {
		fmt.Fprintf(&b, "--- # %s\n", description)
		p := proxy(t, description)
		for _, show := range tp.show {
			resources, err := generate(tp.mesh.snap, p, shown[show], nil)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s:\n", show)
			for _, r := range resources {
				if slices.ContainsFunc(tp.skip, func(word string) bool { return strings.Contains(r.Name, word) }) {
					continue
				}
				b.WriteString(renderResource(t, r))
			}
		}
	}
	return b.String()
}

func renderResource(t *testing.T, r *xds.Resource) string {
	t.Helper()
	m, err := r.Body.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	data, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	return encode(t, &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{compact(tree)}})
}

func encode(t *testing.T, n *yaml.Node) string {
	t.Helper()
	var b strings.Builder
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(1)
	if err := enc.Encode(n); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// abbreviations replace frequent values in golden files. abbreviations.golden.yaml defines them.
var abbreviations = map[string]string{
	"$ads":         `{"ads": {}, "resourceApiVersion": "V3"}`,
	"$unlimited":   `{"thresholds": [{"maxConnections": 4294967295, "maxPendingRequests": 4294967295, "maxRequests": 4294967295, "maxRetries": 4294967295, "trackRemaining": true}]}`,
	"$introduce":   `{"appendAction": "OVERWRITE_IF_EXISTS_OR_ADD", "header": {"key": "x-pilotfish-peer", "value": "%METADATA(LISTENER:pilotfish.peer:self)%"}}`,
	"$sds":         `{"apiConfigSource": {"apiType": "GRPC", "grpcServices": [{"envoyGrpc": {"clusterName": "sds-grpc"}}], "setNodeOnFirstMessageOnly": true, "transportApiVersion": "V3"}, "initialFetchTimeout": "0s", "resourceApiVersion": "V3"}`,
	"$tlsVersions": `{"tlsMaximumProtocolVersion": "TLSv1_3", "tlsMinimumProtocolVersion": "TLSv1_2"}`,
	"$plaintext":   `{"name": "tlsMode-disabled", "match": {}, "transportSocket": {"name": "envoy.transport_sockets.raw_buffer", "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"}}}`,
	"$http1":       `{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicitHttpConfig": {"httpProtocolOptions": {}}}}`,
	"$http2":       `{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicitHttpConfig": {"http2ProtocolOptions": {"allowConnect": true}}}}`,
	"$retries": `{"hostSelectionRetryMaxAttempts": "5", "numRetries": 2, "retriableStatusCodes": [503],
		"retryHostPredicate": [{"name": "envoy.retry_host_predicates.previous_hosts", "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"}}],
		"retryOn": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"}`,
}

func abbreviate(v any) (string, bool) {
	for name, text := range abbreviations {
		var full any
		if err := json.Unmarshal([]byte(text), &full); err != nil {
			panic(err)
		}
		if reflect.DeepEqual(v, full) {
			return name, true
		}
	}
	return "", false
}

// TestGoldenFileAbbreviations checks the definitions of the abbreviations.
func TestGoldenFileAbbreviations(t *testing.T) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(abbreviations)) {
		var full map[string]any
		if err := json.Unmarshal([]byte(abbreviations[name]), &full); err != nil {
			t.Fatal(err)
		}
		// The definition itself is not abbreviated, only its parts.
		n := compactMap(full)
		fmt.Fprintf(&b, "%s:\n%s", name, indent(encode(t, n)))
	}
	checkGolden(t, "abbreviations", b.String())
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n  ") + "\n"
}

// compact encodes small values on one line.
func compact(v any) *yaml.Node {
	n := &yaml.Node{}
	if name, ok := abbreviate(v); ok {
		n.SetString(name)
		return n
	}
	switch v := v.(type) {
	case map[string]any:
		return compactMap(v)
	case []any:
		n.Kind = yaml.SequenceNode
		for _, item := range v {
			n.Content = append(n.Content, compact(item))
		}
	default:
		if err := n.Encode(v); err != nil {
			panic(err)
		}
	}
	return narrow(n)
}

func compactMap(v map[string]any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, k := range sortedKeys(v) {
		child := v[k]
		if s, ok := child.(string); ok && k == "@type" {
			child = s[strings.LastIndexByte(s, '.')+1:]
		}
		key := &yaml.Node{}
		key.SetString(k)
		n.Content = append(n.Content, key, compact(child))
	}
	return narrow(n)
}

func narrow(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.ScalarNode && width(n) < 110 {
		n.Style = yaml.FlowStyle
	}
	return n
}

func width(n *yaml.Node) int {
	w := len(n.Value) + 2
	for _, c := range n.Content {
		w += width(c)
	}
	return w
}

func sortedKeys(m map[string]any) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	// The name is first, like a heading.
	rank := func(k string) string {
		if k == "name" || k == "clusterName" {
			return ""
		}
		return k
	}
	sortBy(out, rank)
	return out
}

// TestEnvoyAcceptsGoldenConfigurations sends the resources of each proxy of each topic to real Envoys on one stream.
// Envoy must reject none, and all must become active.
func TestEnvoyAcceptsGoldenConfigurations(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			plane := newTestControlPlane(t)
			plane.push(pushState{snap: snapshot.Build(nil, newTestMesh(t, nil).inputs(), nil)}, snapshot.Change{Full: true})
			e := plane.startEnvoy(version, "sidecar taster.default 127.203.250.1", "spiffe://cluster.local/ns/default/sa/taster")
			plane.inSync(1)
			for _, tp := range topics(t) {
				for _, description := range tp.proxies {
					p := proxy(t, description)
					t.Logf("%s: %s", tp.name, description)
					plane.push(pushState{snap: tp.mesh.snap, as: onOtherNetwork(p, version)}, snapshot.Change{Full: true})
					plane.inSync(1)
					e.hasSettled()
				}
			}
		})
	}
}

// onOtherNetwork changes a proxy's addresses, so that two Envoys do not conflict.
func onOtherNetwork(p *translate.Proxy, version string) *translate.Proxy {
	moved := *p
	if p.EnvoyVersion != [3]uint32{} { // use the topic's Envoy version only if the real Envoy has it
		if _, err := fmt.Sscanf(version, "%d.%d.%d", &moved.EnvoyVersion[0], &moved.EnvoyVersion[1], &moved.EnvoyVersion[2]); err != nil {
			panic(err)
		}
	}
	if version == testenv.EnvoyVersion {
		return &moved
	}
	b := p.Address.As4()
	b[1]++
	moved.Address = addrFrom(b)
	moved.Publish = nil
	moved.Upstreams = append([]translate.Upstream(nil), p.Upstreams...)
	for i := range moved.Upstreams {
		b := moved.Upstreams[i].Listen.Addr().As4()
		b[1]++
		moved.Upstreams[i].Listen = addrPort(addrFrom(b), moved.Upstreams[i].Listen.Port())
	}
	return &moved
}
