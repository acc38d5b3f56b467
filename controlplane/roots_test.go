package controlplane_test

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Agents that receive trust bundles from the control plane get the authority's root and the roots in the mesh
// configuration.
func TestAgentsReceiveTheRootsOfTheMesh(t *testing.T) {
	other := &meshconfig.MeshConfig_CertificateData{CertificateData: &meshconfig.MeshConfig_CertificateData_Pem{Pem: "another root"}}
	p := start(t, controlplane.Config{Ports: freePorts, Mesh: &meshconfig.MeshConfig{CaCertificates: []*meshconfig.MeshConfig_CertificateData{other}}})
	conn, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default"})
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~a.default~default.svc.cluster.local", Metadata: metadata}, TypeUrl: xds.ProxyConfigType,
	}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || len(answer.GetResources()) != 1 {
		t.Fatalf("%v, %v", answer, err)
	}
	received := &meshconfig.ProxyConfig{}
	if err := answer.GetResources()[0].GetResource().UnmarshalTo(received); err != nil {
		t.Fatal(err)
	}
	if want := []string{"another root", string(p.Authority().RootPEM())}; !slices.Equal(received.GetCaCertificatesPem(), want) {
		t.Errorf("roots are %q, want %q", received.GetCaCertificatesPem(), want)
	}
}
