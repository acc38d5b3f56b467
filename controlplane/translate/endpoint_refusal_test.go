package translate_test

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// refusalMesh is a mesh whose platform allows only sockets in /run/apps.
func refusalMesh(t *testing.T, documents string) *snapshot.Snapshot {
	t.Helper()
	store := config.NewMemoryStore()
	store.Put(parse(t, documents)...)
	return snapshot.Build(nil, snapshot.Inputs{Store: store, Endpoints: &registry.EndpointPolicy{AllowUnix: []string{"/run/apps"}}}, nil)
}

// describeEndpoints returns all clusters and load assignments of a proxy as text.
func describeEndpoints(t *testing.T, s *snapshot.Snapshot, p *translate.Proxy) string {
	t.Helper()
	clusters, err := translate.Clusters(s, p)
	if err != nil {
		t.Fatal(err)
	}
	endpoints, err := translate.Endpoints(s, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range append(clusters, endpoints...) {
		message, err := r.Body.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(prototext.Format(message))
	}
	return b.String()
}

// nodeProxy returns the proxy of a node that has the label app.
func nodeProxy(t *testing.T, id, app string) *translate.Proxy {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"app": app}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := translate.ParseProxy(&corev3.Node{Id: id, Metadata: metadata}, "")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDefaultEndpointOfProxyItselfIsRefused(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		refused  bool
	}{
		{"127.0.0.1:8081", false},
		{"0.0.0.0:8081", false},
		{"unix:///run/apps/app.sock", false},
		{"127.0.0.1:15000", true},
		{"[::1]:15020", true},
		{"0.0.0.0:15090", true},
		{"unix:///etc/istio/proxy/XDS", true},
		{"unix:///run/app.sock", true},
		{"unix:///run/apps/../app.sock", true},
	} {
		s := refusalMesh(t, `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: a, namespace: shop}
spec: {workloadSelector: {labels: {app: a}}, ingress: [{port: {number: 8080, protocol: HTTP, name: web}, defaultEndpoint: "`+c.endpoint+`"}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {app: a}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"], defaultEndpoint: "`+c.endpoint+`"}]}
`)
		found := 0
		for _, p := range analysis.Check(s) {
			if p.Code == config.EndpointRefused && strings.HasSuffix(p.Field, ".defaultEndpoint") && p.Value == c.endpoint && p.Remedy != "" {
				found++
			}
		}
		if (found == 2) != c.refused {
			t.Errorf("%s: %d findings of the expected code in %v", c.endpoint, found, analysis.Check(s))
		}
		for _, kind := range []string{"sidecar", "router"} {
			p := nodeProxy(t, kind+"~10.1.1.1~a.shop~shop.svc.cluster.local", "a")
			text := describeEndpoints(t, s, p)
			has := strings.Contains(text, "lb_endpoints")
			if has == c.refused {
				t.Errorf("endpoint %s for a %s: refused is %v, want %v:\n%s", c.endpoint, kind, !has, c.refused, text)
			}
		}
	}
}

func TestGatewayOfOtherNamespaceCannotUseLocalPorts(t *testing.T) {
	s := refusalMesh(t, `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge, namespace: edge}
spec: {address: 10.1.1.1, labels: {app: edge}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: mine, namespace: tenant}
spec: {selector: {app: edge}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"], defaultEndpoint: "127.0.0.1:8081"}]}
`)
	p := nodeProxy(t, "router~10.1.1.1~edge.edge~edge.svc.cluster.local", "edge")
	if text := describeEndpoints(t, s, p); strings.Contains(text, "8081") {
		t.Errorf("the gateway has a cluster for the refused endpoint:\n%s", text)
	}
	if problems := analysis.Check(s); len(problems) != 1 || problems[0].Code != config.EndpointRefused || problems[0].Field != "spec.servers[0].defaultEndpoint" {
		t.Errorf("problems are %v", problems)
	}
}

func TestLoopbackEndpointsAreForSidecarsOnly(t *testing.T) {
	s := refusalMesh(t, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: static, namespace: shop}
spec:
  hosts: [static.example.com]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: 8081}}, {address: 10.0.0.1, ports: {http: 8082}}, {address: 127.0.0.1, ports: {http: 15000}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: dns, namespace: shop}
spec: {hosts: [dns.example.com], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: localhost, ports: {http: 8083}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: request, namespace: shop}
spec: {hosts: ["*.localhost"], resolution: DYNAMIC_DNS, ports: [{number: 80, name: http, protocol: HTTP}]}
`)
	for kind, want := range map[string][]bool{"sidecar": {true, true, true, false, true}, "router": {false, true, false, false, false}} {
		p := nodeProxy(t, kind+"~10.1.1.1~a.shop~shop.svc.cluster.local", "a")
		text := describeEndpoints(t, s, p)
		for i, part := range []string{"8081", "8082", "8083", "15000", "dynamic_forward_proxy"} {
			if strings.Contains(text, part) != want[i] {
				t.Errorf("%s: %s is %v, want %v", kind, part, !want[i], want[i])
			}
		}
	}
}
