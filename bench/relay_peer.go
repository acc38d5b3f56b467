//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	routeType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// rawCodec sends marshalled bytes, and receives bytes without decoding, so that only the connection is measured.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(proto.Message); ok {
		b, err := proto.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(proto.Message); ok {
		return proto.Unmarshal(data.Materialize(), m)
	}
	*v.(*int) = data.Len()
	return nil
}

func (rawCodec) Name() string { return "proto" }

// plane is a control plane that sends the same responses to all clients, and measures the time until their ACKs.
type plane struct {
	address string
	// clusters is the encoded response to a request for clusters. took receives the time from sending it to its ACK.
	clusters []byte
	took     chan time.Duration
	// updates is the number of small updates that the control plane sends after a request for endpoints. pace is their rate
	// per second; 0 selects the maximum rate.
	updates, pace int
	update        []byte
	updateType    string
	acks          atomic.Int64
	// accepted receives the time from the first update to the ACK of the last one.
	accepted chan time.Duration
}

// startPlaneOfBytes starts the control plane p, which serves over TLS until the context ends.
func startPlaneOfBytes(ctx context.Context, certs string, p *plane) error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(certs, "plane.pem"), filepath.Join(certs, "plane.key"))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.address = l.Addr().String()
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)), grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxRecvMsgSize(64<<20))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "DeltaAggregatedResources", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { return p.serve(s) }}},
	}, p)
	go func() { _ = server.Serve(l) }()
	context.AfterFunc(ctx, server.Stop)
	return nil
}

func (p *plane) serve(s grpc.ServerStream) error {
	var sent time.Time
	for {
		var r discoveryv3.DeltaDiscoveryRequest
		if err := s.RecvMsg(&r); err != nil {
			return err
		}
		switch {
		case r.ErrorDetail != nil:
			return fmt.Errorf("the client rejected the response: %s", r.ErrorDetail.Message)
		case r.TypeUrl == clusterType && r.ResponseNonce == "":
			sent = time.Now()
			if err := s.SendMsg(p.clusters); err != nil {
				return err
			}
		case r.TypeUrl == clusterType && r.ResponseNonce != "":
			p.took <- time.Since(sent)
		case r.TypeUrl == listenerType && r.ResponseNonce == "":
			if err := s.SendMsg(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: listenerType, Nonce: "1", SystemVersionInfo: "1"}); err != nil {
				return err
			}
		case r.TypeUrl == p.updateType && r.ResponseNonce == "" && p.updates > 0:
			sent = time.Now()
			p.acks.Store(0)
			go p.sendUpdates(s)
		case r.TypeUrl == p.updateType:
			if p.acks.Add(1) == int64(p.updates) {
				p.accepted <- time.Since(sent)
			}
		}
	}
}

func (p *plane) sendUpdates(s grpc.ServerStream) {
	began := time.Now()
	for i := range p.updates {
		if p.pace > 0 {
			if early := time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(p.pace))); early > time.Millisecond {
				time.Sleep(early)
			}
		}
		if s.SendMsg(p.update) != nil {
			return
		}
	}
}

// largeConfiguration returns an encoded response with this number of clusters and about this size in bytes.
func largeConfiguration(clusters, size int) ([]byte, error) {
	each := size / clusters
	filler, err := structpb.NewStruct(map[string]any{"config": strings.Repeat("x", max(0, each-350))})
	if err != nil {
		return nil, err
	}
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "1", SystemVersionInfo: "1"}
	for i := range clusters {
		name := fmt.Sprintf("outbound|8080||service-%05d.namespace-%03d.svc.cluster.local", i, i%100)
		body, err := anypb.New(&clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, ConnectTimeout: durationpb.New(time.Second),
			LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
				LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
					Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
						Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 9}}}}}}}}}}},
			Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": filler}},
		})
		if err != nil {
			return nil, err
		}
		response.Resources = append(response.Resources, &discoveryv3.Resource{Name: name, Version: fmt.Sprint(i), Resource: body})
	}
	return proto.Marshal(response)
}

// endpointUpdate returns an encoded response with this number of endpoints of one service.
func endpointUpdate(endpoints int) ([]byte, error) {
	const name = "outbound|8080||service-00001.namespace-001.svc.cluster.local"
	var list []*endpointv3.LbEndpoint
	for i := range endpoints {
		list = append(list, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: fmt.Sprintf("10.1.2.%d", i), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080}}}}}}})
	}
	body, err := anypb.New(&endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: list}}})
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: endpointType, Nonce: "1", SystemVersionInfo: "1",
		Resources: []*discoveryv3.Resource{{Name: name, Version: "1", Resource: body}},
	})
}

// routeUpdate returns an encoded response with route configurations of about 25 kB each, of about size bytes in total.
func routeUpdate(size int) ([]byte, error) {
	const each = 25 << 10
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: routeType, Nonce: "1", SystemVersionInfo: "1"}
	for i := range size / each {
		config := &routev3.RouteConfiguration{Name: fmt.Sprint(8000 + i)}
		for h := 0; proto.Size(config) < each; h++ {
			host := fmt.Sprintf("service-%05d.namespace-%03d.svc.cluster.local", h, i)
			config.VirtualHosts = append(config.VirtualHosts, &routev3.VirtualHost{
				Name: host + ":80", Domains: []string{host, host + ":80", fmt.Sprintf("10.%d.%d.1", i, h)},
				Routes: []*routev3.Route{{
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "outbound|80||" + host}, Timeout: durationpb.New(0)}},
				}},
			})
		}
		body, err := anypb.New(config)
		if err != nil {
			return nil, err
		}
		response.Resources = append(response.Resources, &discoveryv3.Resource{Name: config.Name, Version: "1", Resource: body})
	}
	return proto.Marshal(response)
}
