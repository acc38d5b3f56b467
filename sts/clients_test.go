package sts

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpcsts "google.golang.org/grpc/credentials/sts"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// writeToken writes the workload's token to a file, with a newline at the end, as a kubelet mounts it.
func writeToken(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(workloadToken(t)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestGRPCClientGetsTokens(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	_, base, _ := start(t, Config{Exchanger: from, Check: workloadCheck, Now: clock.Now})
	authority := testpki.New(t, "grpc")
	headers := make(chan []string, 10)
	address := secureGRPC(t, authority, headers)

	perCall, err := grpcsts.NewCredentials(grpcsts.Options{
		TokenExchangeServiceURI: base + TokenPath,
		SubjectTokenPath:        writeToken(t),
		SubjectTokenType:        JWTType,
		Audience:                "https://xds.example/",
		RequestedTokenType:      AccessTokenType,
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithPerRPCCredentials(perCall),
		grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(authority.Pool(), "127.0.0.1")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for range 3 {
		if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := <-headers; len(got) != 1 || got[0] != "Bearer access-1" {
			t.Errorf("the server was sent %q", got)
		}
	}
	if got := from.requests[0]; got.Scope != googleScope || got.Audiences[0] != "https://xds.example/" || string(got.Subject) != workloadToken(t) {
		t.Errorf("the exchange server did not receive all parameters of the client")
	}
}

// secureGRPC is a gRPC server with TLS that sends the authorization header of each call to headers.
func secureGRPC(t *testing.T, authority *testpki.Authority, headers chan<- []string) string {
	t.Helper()
	tell := func(ctx context.Context) {
		md, _ := metadata.FromIncomingContext(ctx)
		headers <- md.Get("authorization")
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(authority.ServerConfig(t, "127.0.0.1", "localhost"))),
		grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			tell(ctx)
			return next(ctx, r)
		}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { // accepts every method that Envoy calls
			tell(stream.Context())
			<-stream.Context().Done()
			return nil
		}))
	healthv1.RegisterHealthServer(server, health.NewServer())
	return listenGRPC(t, server)
}

func listenGRPC(t *testing.T, server *grpc.Server) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	return listener.Addr().String()
}
