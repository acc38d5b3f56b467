//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/pilotfish-mesh/pilotfish/internal/processors"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// relayAs runs a relay in this process, whose costs the parent process measures. spec is
// kind,socket,address,roots,ready: the kind of relay, its socket, the control plane's address, the file with root
// certificates, and whether the relay runs as in an agent that is ready. The kinds are "pilotfish", which stores the
// last accepted configuration like the agent, "unkept", which does not store it, and "naive".
func relayAs(ctx context.Context, spec string) error {
	parts := strings.Split(spec, ",")
	if len(parts) != 5 {
		return fmt.Errorf("-relay %q: write kind,socket,address,roots,ready", spec)
	}
	kind, socket, address, roots := parts[0], parts[1], parts[2], parts[3]
	if kind == "naive" {
		return naiveRelay(ctx, socket, address, roots)
	}
	if parts[4] == "true" {
		processors.Limit()
	}
	config := xdsproxy.Config{
		Socket: socket, Upstreams: []string{address}, Server: xdsproxy.Server{TLS: xdsproxy.TLS{RootFile: roots}},
	}
	if kind == "pilotfish" {
		config.LastGood.Dirs = []string{socket + ".lastgood"}
	}
	r, err := xdsproxy.New(config)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// naiveRelay decodes and encodes each message with the generated gRPC client and server.
func naiveRelay(ctx context.Context, socket, address, roots string) error {
	pem, err := os.ReadFile(roots)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		return err
	}
	defer conn.Close()
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(1 << 30))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, &naive{client: discoveryv3.NewAggregatedDiscoveryServiceClient(conn)})
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(l)
}

type naive struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	client discoveryv3.AggregatedDiscoveryServiceClient
}

func (n *naive) DeltaAggregatedResources(down discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	up, err := n.client.DeltaAggregatedResources(down.Context())
	if err != nil {
		return err
	}
	go func() {
		for {
			r, err := down.Recv()
			if err != nil || up.Send(r) != nil {
				return
			}
		}
	}()
	for {
		r, err := up.Recv()
		if err != nil {
			return err
		}
		if err := down.Send(r); err != nil {
			return err
		}
	}
}
