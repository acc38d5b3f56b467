package controlplane_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const storeOf = `
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: default}
spec:
  selector: {app: NAME}
  ports: [{name: http, port: 80}, {name: tcp, port: 5432}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: NAME, namespace: default}
spec: {address: 10.1.1.1, labels: {app: NAME}, serviceAccount: NAME}
`

// ruleNamed returns one of several conflicting rules for one host.
func ruleNamed(name string) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: default}
spec: {hosts: [shop], http: [{name: %s, route: [{destination: {host: shop}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %s, namespace: default}
spec: {host: shop, subsets: [{name: %s, labels: {version: %s}}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: %s, namespace: default}
spec: {mtls: {mode: %s}}
`, name, name, name, name, name, name, map[bool]string{true: "STRICT", false: "DISABLE"}[name < "m"])
}

// TestControlPlanesWithEqualFilesServeEqualResources: resources do not depend on the order of starts, file reads and
// restarts, and a proxy that switches between the control planes is sent nothing.
func TestControlPlanesWithEqualFilesServeEqualResources(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "shop.yaml"), strings.ReplaceAll(storeOf, "NAME", "shop"))
	cfg := controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts}
	first := start(t, cfg)
	for _, name := range []string{"zebra", "ant", "mole"} { // the order by age is not the order by name
		write(t, filepath.Join(dir, name+".yaml"), ruleNamed(name)+"---"+strings.ReplaceAll(storeOf, "NAME", name))
		testenv.Eventually(t, name+" is in force", func() error {
			if _, body := first.get("/debug/registryz"); !strings.Contains(body, name+".default.svc") {
				return fmt.Errorf("%s", body)
			}
			return nil
		})
	}
	second := start(t, cfg)
	proxies := []string{
		"sidecar~10.1.1.1~shop-1.default~default.svc.cluster.local",
		"sidecar~10.1.1.2~other.elsewhere~elsewhere.svc.cluster.local",
		"router~10.1.1.3~edge.default~default.svc.cluster.local",
	}
	for _, id := range proxies {
		one := fetch(t, first, id, nil)
		if n := len(one[xds.ClusterType]); n < 8 {
			t.Fatalf("%s has %d clusters", id, n)
		}
		two := fetch(t, second, id, nil)
		for _, typeURL := range fetched {
			if !maps.Equal(one[typeURL], two[typeURL]) {
				t.Errorf("%s, %s: one control plane has\n%v\nand the other\n%v", id, typeURL, one[typeURL], two[typeURL])
			}
		}
		for typeURL, again := range fetch(t, second, id, one) {
			if len(again) > 0 {
				t.Errorf("%s switches to the other control plane and is sent %v of %s", id, slices.Collect(maps.Keys(again)), typeURL)
			}
		}
	}
}

// TestEnvoyThatHadInlineRoutesGetsInlineRoutes: an old Envoy that had inline virtual hosts gets them now and after a
// reconnect. Other Envoys get VHDS.
func TestEnvoyThatHadInlineRoutesGetsInlineRoutes(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "shop.yaml"), strings.ReplaceAll(storeOf, "NAME", "shop"))
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts})
	const id = "sidecar~10.1.1.1~shop-1.default~default.svc.cluster.local"
	foreign := map[string]map[string]string{xds.RouteType: {"80": "2026-11-22T20:31:07Z/1"}}
	is := func(what string, minor uint32, has map[string]map[string]string, apart bool) map[string]map[string]string {
		t.Helper()
		got := fetchAs(t, p, id, minor, has)
		if len(got[xds.RouteType]) != 2 || (len(got[xds.VirtualHostType]) > 0) != apart {
			t.Errorf("%s: it is sent route configurations %v and virtual hosts %v", what, got[xds.RouteType], got[xds.VirtualHostType])
		}
		return got
	}
	apart := is("a fresh one of 1.38", 38, nil, true)
	if again := fetchAs(t, p, id, 38, apart); len(again[xds.RouteType])+len(again[xds.VirtualHostType]) > 0 {
		t.Errorf("a reconnecting 1.38 with VHDS is sent %v", again)
	}
	is("1.40 from elsewhere", 40, foreign, true)
	whole := is("1.38 from elsewhere", 38, foreign, false)
	whole[xds.VirtualHostType] = apart[xds.VirtualHostType] // the client continues to claim them
	if again := fetchAs(t, p, id, 38, whole); len(again[xds.RouteType])+len(again[xds.VirtualHostType]) > 0 {
		t.Errorf("a reconnecting 1.38 with inline routes is sent %v", again)
	}
	is("1.40 with whole routes", 40, whole, true)
}

var fetched = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.VirtualHostType}

// fetch returns the versions of all resources that a control plane sends to a proxy that claims the resources in has.
func fetch(t *testing.T, p *testServer, id string, has map[string]map[string]string) map[string]map[string]string {
	t.Helper()
	return fetchAs(t, p, id, 40, has)
}

// fetchAs is fetch for Envoy 1.minor.
func fetchAs(t *testing.T, p *testServer, id string, minor uint32, has map[string]map[string]string) map[string]map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	labels, _ := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"app": "shop"}})
	node := &corev3.Node{Id: id, Metadata: labels, UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{
		UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor}},
	}}
	got := map[string]map[string]string{}
	for _, typeURL := range fetched {
		got[typeURL] = map[string]string{}
		request := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, InitialResourceVersions: has[typeURL]}
		switch typeURL {
		case xds.EndpointType:
			request.ResourceNamesSubscribe = edsNames(got, has)
		case xds.RouteType:
			request.ResourceNamesSubscribe = []string{"80", "inbound|80||"} // the second always has inline virtual hosts
		}
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
	}
	// The server responds to a type without resources too; that response shows that all earlier requests are processed.
	const last = "type.googleapis.com/unknown.Type"
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: last, ResourceNamesSubscribe: []string{"it"}}); err != nil {
		t.Fatal(err)
	}
	for ended := false; ; {
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		ended = ended || r.GetTypeUrl() == last
		for _, res := range r.GetResources() {
			got[r.GetTypeUrl()][res.GetName()] = res.GetVersion()
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}); err != nil {
			t.Fatal(err)
		}
		// A route configuration has its final version when its virtual hosts are accepted.
		if ended && !slices.ContainsFunc(slices.Collect(maps.Values(got[xds.RouteType])), func(v string) bool { return strings.HasSuffix(v, "~") }) {
			return got
		}
	}
}

// edsNames returns the assignments that a proxy requests: those that it has, or, at first, a fixed list.
func edsNames(_, has map[string]map[string]string) []string {
	if has != nil {
		return slices.Collect(maps.Keys(has[xds.EndpointType]))
	}
	return []string{
		"outbound|80||shop.default.svc.cluster.local", "outbound|80||ant.default.svc.cluster.local",
		"outbound|80|ant|shop.default.svc.cluster.local", "outbound|5432||zebra.default.svc.cluster.local",
	}
}
