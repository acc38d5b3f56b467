package controlplane_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// connectClient connects a proxy of the namespace shop, which subscribes to clusters and to the routes of port 80.
// refuse returns the reason for which it rejects a response, or "" to accept it.
func (p *testServer) connectClient(name string, refuse func(*discoveryv3.DeltaDiscoveryResponse) string) {
	p.t.Helper()
	conn, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "LABELS": map[string]any{"app": name}})
	if err != nil {
		p.t.Fatal(err)
	}
	node := &corev3.Node{Id: "sidecar~10.1.2.3~" + name + ".shop~shop.svc.cluster.local", Metadata: metadata}
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		{Node: node, TypeUrl: xds.ClusterType},
		{TypeUrl: xds.ListenerType},
		{TypeUrl: xds.RouteType, ResourceNamesSubscribe: []string{"80"}},
	} {
		if err := stream.Send(r); err != nil {
			p.t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}
			if reason := refuse(m); reason != "" {
				answer.ErrorDetail = &rpcstatus.Status{Code: 3, Message: reason}
			}
			_ = stream.Send(answer)
		}
	}()
	p.t.Cleanup(func() { cancel(); <-done; _ = conn.Close() })
}

// awaitRejection waits for the client's rejection of a type.
func (p *testServer) awaitRejection(typeURL string) *xds.Rejection {
	p.t.Helper()
	var found *xds.Rejection
	testenv.Eventually(p.t, "the client has rejected "+typeURL, func() error {
		for _, c := range p.Status().Clients {
			for _, t := range c.Types {
				if found = t.Rejected; found != nil && t.TypeURL == typeURL {
					return nil
				}
			}
		}
		return fmt.Errorf("clients are %+v", p.Status().Clients)
	})
	return found
}

const (
	shopService = `apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {selector: {app: %[1]s}, ports: [{name: http, port: 80}]}
---
`
	shopRoute = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s]
  http:
  - match:
    - uri:
        regex: %[2]s
    route: [{destination: {host: %[1]s}}]
---
`
)

func TestRejectionNamesTheChangedDocumentAndTheQuotedField(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "services.yaml"), fmt.Sprintf(shopService, "reviews")+fmt.Sprintf(shopService, "ratings"))
	write(t, filepath.Join(dir, "other.yaml"), fmt.Sprintf(shopRoute, "ratings", "/ra.*"))
	write(t, filepath.Join(dir, "routes.yaml"), fmt.Sprintf(shopRoute, "reviews", "/re.*"))
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts})
	p.connectClient("page", func(m *discoveryv3.DeltaDiscoveryResponse) string {
		if m.GetTypeUrl() == xds.RouteType && strings.Contains(m.String(), "/bad.*") {
			return `Only unique values: invalid regex "/bad.*"`
		}
		return ""
	})
	testenv.Eventually(t, "the client has its routes", func() error {
		for _, c := range p.Status().Clients {
			if c.InSync && len(c.Types) >= 3 {
				return nil
			}
		}
		return fmt.Errorf("clients are %+v", p.Status().Clients)
	})
	file := filepath.Join(dir, "routes.yaml")
	write(t, file, fmt.Sprintf(shopRoute, "reviews", "/bad.*"))
	from := p.awaitRejection(xds.RouteType).From
	want := xds.SuspectDocument{Document: "VirtualService shop/reviews", Position: file + ":9:16", Field: "spec.http[0].match[0].uri.regex",
		Evidence: "the document changed since Envoy last accepted this type; Envoy's reason quotes the document's field spec.http[0].match[0].uri.regex"}
	if len(from) == 0 || from[0] != want {
		t.Errorf("the documents that are named are %+v, not first %+v", from, want)
	}
	problems := p.debugProblems()
	if len(problems) != 1 || problems[0].Code != config.RejectedByEnvoy || problems[0].At != (config.Position{File: file, Line: 9, Column: 16}) || problems[0].Key.Name != "reviews" ||
		!strings.Contains(problems[0].Message, "rejected by a proxy") || !strings.Contains(problems[0].Message, "invalid regex") || problems[0].Remedy == "" {
		t.Errorf("the problems are %v", problems)
	}
}

func TestRejectionOfFirstConfigurationNamesItsDocuments(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "services.yaml"), fmt.Sprintf(shopService, "reviews")+fmt.Sprintf(shopService, "ratings")+`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: pool, namespace: shop}
spec: {host: reviews, trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}}}}
`)
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts})
	const cluster = "outbound|80||reviews.shop.svc.cluster.local"
	p.connectClient("page", func(m *discoveryv3.DeltaDiscoveryResponse) string {
		if m.GetTypeUrl() == xds.ClusterType && strings.Contains(m.String(), cluster) {
			return "Error adding/updating cluster(s) " + cluster + ": no"
		}
		return ""
	})
	r := p.awaitRejection(xds.ClusterType)
	var names []string
	for _, b := range r.From {
		names = append(names, b.Document)
	}
	if got := strings.Join(names, ", "); got != "DestinationRule shop/pool, Service shop/reviews" {
		t.Errorf("of %v the documents that are named are %s", r.Resources, got)
	}
}
