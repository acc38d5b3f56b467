package mcp

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// update is one response of a server.
type update struct {
	typeURL, version, nonce string
	resources               []namedResource
	removed                 []string
	// full: resources contains all documents of the type, and the client removes all others.
	full bool
}

type namedResource struct {
	name, version string // empty in the SotW variant
	body          *anypb.Any
}

// stream is an ADS stream of either protocol variant. One goroutine uses it.
type stream interface {
	// subscribe requests all documents of a type. known contains the versions of the documents that the client has, by
	// name.
	subscribe(typeURL string, known map[string]string) error
	recv() (*update, error)
	// answer sends the ACK of a response, or its NACK if reason is not empty.
	answer(u *update, reason string) error
}

// deltaStream is the delta variant.
type deltaStream struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node *corev3.Node // nil after the first request
}

func openDelta(ctx context.Context, conn *grpc.ClientConn, node *corev3.Node) (stream, error) {
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	return &deltaStream{s, node}, err
}

func (d *deltaStream) subscribe(typeURL string, known map[string]string) error {
	r := &discoveryv3.DeltaDiscoveryRequest{Node: d.node, TypeUrl: typeURL, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: known}
	d.node = nil
	return d.Send(r)
}

func (d *deltaStream) recv() (*update, error) {
	r, err := d.Recv()
	if err != nil {
		return nil, err
	}
	u := &update{typeURL: r.GetTypeUrl(), version: r.GetSystemVersionInfo(), nonce: r.GetNonce(), removed: r.GetRemovedResources()}
	for _, resource := range r.GetResources() {
		u.resources = append(u.resources, namedResource{resource.GetName(), resource.GetVersion(), resource.GetResource()})
	}
	return u, nil
}

func (d *deltaStream) answer(u *update, reason string) error {
	return d.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: u.typeURL, ResponseNonce: u.nonce, ErrorDetail: errorDetail(reason)})
}

// sotwStream is the state-of-the-world variant, for servers without the delta variant.
type sotwStream struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node     *corev3.Node
	accepted map[string]string // the last accepted version by type
}

func openSotW(ctx context.Context, conn *grpc.ClientConn, node *corev3.Node) (stream, error) {
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	return &sotwStream{s, node, map[string]string{}}, err
}

func (s *sotwStream) subscribe(typeURL string, _ map[string]string) error {
	r := &discoveryv3.DiscoveryRequest{Node: s.node, TypeUrl: typeURL}
	s.node = nil
	return s.Send(r)
}

func (s *sotwStream) recv() (*update, error) {
	r, err := s.Recv()
	if err != nil {
		return nil, err
	}
	u := &update{typeURL: r.GetTypeUrl(), version: r.GetVersionInfo(), nonce: r.GetNonce(), full: true}
	for _, body := range r.GetResources() {
		u.resources = append(u.resources, namedResource{body: body})
	}
	return u, nil
}

func (s *sotwStream) answer(u *update, reason string) error {
	if reason == "" {
		s.accepted[u.typeURL] = u.version
	}
	return s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: u.typeURL, VersionInfo: s.accepted[u.typeURL], ResponseNonce: u.nonce, ErrorDetail: errorDetail(reason)})
}

func errorDetail(reason string) *rpcstatus.Status {
	if reason == "" {
		return nil
	}
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: reason}
}
