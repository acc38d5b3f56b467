package controlplane

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

const (
	// maxCall limits the size in bytes of a message of a unary call. For its own requests, the discovery server has a
	// separate limit.
	maxCall = 32 << 10
	// maxHeader limits the size in bytes of the headers of a call. A token has up to 8 KiB.
	maxHeader = 32 << 10
	// maxCalls limits the simultaneous streams and calls on one connection. An agent has one stream and few calls.
	maxCalls = 100
)

// newGRPC returns a gRPC server with the limits and timeouts of all ports. transport is nil on the plaintext port.
func newGRPC(transport credentials.TransportCredentials, more ...grpc.ServerOption) *grpc.Server {
	options := append(xds.ServerOptions(),
		grpc.MaxRecvMsgSize(maxCall), grpc.MaxHeaderListSize(maxHeader), grpc.StreamInterceptor(countUnauthenticated),
		// Most connections are usually idle, so they share their write buffers. Responses are large.
		grpc.WriteBufferSize(32<<10), grpc.ReadBufferSize(16<<10),
		// When all clients reconnect, their requests wait in memory. A static window limits the memory for each client,
		// whereas gRPC's dynamic window would grow.
		grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(64<<10),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.ConnectionTimeout(handshakeTimeout), grpc.InTapHandle(limitCalls),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	if transport != nil {
		options = append(options, grpc.Creds(transport))
	}
	return grpc.NewServer(append(options, more...)...)
}

// limitCalls refuses a call on a connection that had too many calls, none of which was authenticated.
func limitCalls(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if conn := connectionOf(ctx); conn != nil && !conn.countCall() {
		return nil, status.Error(codes.Unauthenticated, "too many unauthenticated calls")
	}
	return ctx, nil
}

// countUnauthenticated promotes the connection of a call that was authenticated, and counts calls that were not.
func countUnauthenticated(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, stream)
	if conn := connectionOf(stream.Context()); conn != nil && overTLS(stream.Context()) {
		if status.Code(err) == codes.Unauthenticated {
			conn.refuseCall()
		} else {
			conn.authenticate()
		}
	}
	return err
}
