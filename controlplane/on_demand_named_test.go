package controlplane_test

import (
	"fmt"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// A wildcard host matches any number of names, and a client can request each. Beyond the limit the client gets all
// hosts, and no names are stored.
func TestClientBeyondHostNameLimitGetsAllHosts(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/entry.yaml", `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wide}
spec: {hosts: ["*.wild.test"], ports: [{name: http, number: 9080, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 127.68.61.9}]}
`)
	p := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, AutomaticScope: true})
	conn, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE", "APP_ADDRESS": "127.68.61.3", "INSTANCE_IPS": "127.68.61.2"})
	if err != nil {
		t.Fatal(err)
	}
	request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.ClusterType, Node: &corev3.Node{
		Id: "sidecar~127.68.61.2~a.default~default.svc.cluster.local", Metadata: metadata,
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40}}},
	}}
	// named requests hosts, and returns the response to the last one.
	named := func(from, to int) *discoveryv3.DeltaDiscoveryResponse {
		request = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.VirtualHostType}
		for n := from; n < to; n++ {
			request.ResourceNamesSubscribe = append(request.ResourceNamesSubscribe, fmt.Sprintf("http_proxy/x%d.wild.test:9080", n))
		}
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		last := request.ResourceNamesSubscribe[len(request.ResourceNamesSubscribe)-1]
		for {
			response, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if response.GetTypeUrl() == xds.VirtualHostType && slices.ContainsFunc(response.GetResources(), func(r *discoveryv3.Resource) bool {
				return slices.Contains(r.GetAliases(), last)
			}) {
				if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.VirtualHostType, ResponseNonce: response.GetNonce()}); err != nil {
					t.Fatal(err)
				}
				return response
			}
		}
	}
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		request, {TypeUrl: xds.RouteType, ResourceNamesSubscribe: []string{"http_proxy"}}, {TypeUrl: xds.VirtualHostType},
	} {
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	all := func(r *discoveryv3.DeltaDiscoveryResponse) bool {
		return slices.ContainsFunc(r.GetResources(), func(r *discoveryv3.Resource) bool { return r.GetName() == "http_proxy/allow_any" })
	}
	if got := named(0, 10_000); all(got) {
		t.Error("10,000 names bring all hosts")
	}
	if got := named(10_000, 10_001); !all(got) {
		t.Errorf("one more name brings %v", got.GetResources())
	}
}
