package controlplane_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// memberAddress allows the members, which connect from loopback, to register this address.
var memberAddress = map[string]string{config.MemberAddressesAnnotation: "10.9.8.7"}

// The current labels of the group determine which policies select a member.
func TestEditedLabelsOfAGroupReachItsConnectedMembers(t *testing.T) {
	groups := config.NewMemoryStore()
	put := func(labels map[string]string) {
		groups.Put(&config.Resource{
			Key: config.Key{Kind: config.WorkloadGroup, Namespace: "shop", Name: "tills"}, Annotations: memberAddress,
			Spec: &networking.WorkloadGroup{Metadata: &networking.WorkloadGroup_ObjectMeta{Labels: labels}, Template: &networking.WorkloadEntry{ServiceAccount: "till"}},
		})
	}
	put(map[string]string{"app": "till"})
	p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{groups}})
	ctx, cancel := context.WithTimeout(asBearer(t.Context(), p.token("shop", "till")), 40*time.Second)
	defer cancel()
	conn := p.dial()
	member := func() discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		metadata, _ := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "SERVICE_ACCOUNT": "till", "AUTO_REGISTER_GROUP": "tills"})
		node := &corev3.Node{Id: "sidecar~10.9.8.7~till-1.shop~shop.svc.cluster.local", Metadata: metadata}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xds.ClusterType}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	stream := member()
	put(map[string]string{"app": "till", "tier": "front"})
	for {
		if _, err := stream.Recv(); err != nil {
			wantCode(t, err, codes.Unavailable, "WorkloadGroup tills")
			break
		}
	}
	stream = member() // according to the new labels, permanently
	put(map[string]string{"app": "till", "tier": "back"})
	for {
		if _, err := stream.Recv(); err != nil {
			wantCode(t, err, codes.Unavailable, "WorkloadGroup tills")
			break
		}
	}
}

// connectMember connects as a workload with the service account till that registers in the group tills.
func connectMember(ctx context.Context, t *testing.T, conn *grpc.ClientConn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "SERVICE_ACCOUNT": "till", "AUTO_REGISTER_GROUP": "tills"})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "sidecar~10.9.8.7~till-1.shop~shop.svc.cluster.local", Metadata: metadata}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xds.ClusterType}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	return err
}

func TestRegistrationRequiresProofOfTheServiceAccount(t *testing.T) {
	groups := config.NewMemoryStore()
	groups.Put(&config.Resource{
		Key: config.Key{Kind: config.WorkloadGroup, Namespace: "shop", Name: "tills"}, Annotations: memberAddress,
		Spec: &networking.WorkloadGroup{Template: &networking.WorkloadEntry{ServiceAccount: "till"}},
	})
	p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{groups}})
	plain, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	wantCode(t, connectMember(t.Context(), t, plain), codes.FailedPrecondition, "must prove their service account", "over TLS")
	if _, page := p.get("/debug/registrations"); strings.Contains(page, "10.9.8.7") {
		t.Errorf("it is registered all the same: %s", page)
	}
	if err := connectMember(asBearer(t.Context(), p.token("shop", "till")), t, p.dial()); err != nil {
		t.Errorf("a member that proves its service account: %v", err)
	}
	if _, page := p.get("/debug/registrations"); !strings.Contains(page, "10.9.8.7") {
		t.Errorf("the member is not shown: %s", page)
	}
}
