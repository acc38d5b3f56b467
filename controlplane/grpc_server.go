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
	// maxCall limits the size in bytes of a received message. The discovery server reads its requests itself, with its
	// own limit.
	maxCall = 32 << 10
	// maxHeader limits the size in bytes of the headers of a call, which contain a token of up to 8 KiB.
	maxHeader = 32 << 10
	// maxCalls limits the simultaneous streams and calls on one connection. An agent has one stream and few calls.
	maxCalls = 100
)

// newGRPC returns a gRPC server with the limits and timeouts that all ports have in common, and the options in more.
// transport is nil for the plaintext port.
func newGRPC(transport credentials.TransportCredentials, more ...grpc.ServerOption) *grpc.Server {
	options := append(xds.ServerOptions(),
		grpc.MaxRecvMsgSize(maxCall), grpc.MaxHeaderListSize(maxHeader), grpc.StreamInterceptor(countUnauthenticated),
		// Use large write buffers, because responses are large.
		grpc.WriteBufferSize(32<<10), grpc.ReadBufferSize(16<<10),
		// When all clients reconnect, their requests wait in memory. A static window limits the memory for each client.
		// gRPC's dynamic window would grow.
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

// limitCalls refuses a call if its connection had too many calls and none of them was authenticated.
func limitCalls(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if conn := connectionOf(ctx); conn != nil && !conn.countCall() {
		return nil, status.Error(codes.Unauthenticated, "this connection has too many calls that are not authenticated yet: wait for a response before further calls")
	}
	return ctx, nil
}

// countUnauthenticated is a gRPC interceptor. After the call, it promotes the connection if the call was authenticated.
// Otherwise it closes the connection if this was its last permitted unauthenticated call.
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
