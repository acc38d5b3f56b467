package probe

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// grpcServer runs a gRPC server until the test ends, and returns a probe of it.
func grpcServer(t *testing.T, h grpc_health_v1.HealthServer) Spec {
	t.Helper()
	l := listen(t)
	s := grpc.NewServer()
	if h != nil {
		grpc_health_v1.RegisterHealthServer(s, h)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	at := addressOf(l)
	return Spec{GRPC: &GRPC{Host: at.Addr().String(), Port: at.Port()}, Timeout: soon}
}

func TestGRPCIsWellWhenTheServiceServes(t *testing.T) {
	h := health.NewServer()
	h.SetServingStatus("stopped", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	h.SetServingStatus("odd", grpc_health_v1.HealthCheckResponse_UNKNOWN)
	spec := grpcServer(t, h)
	for service, want := range map[string]string{
		"":        "",
		"stopped": "NOT_SERVING",
		"odd":     "UNKNOWN",
		"nobody":  `does not know the service "nobody"`,
	} {
		spec.GRPC.Service = service
		err := prober(t, Config{}).Check(t.Context(), spec)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("service %q: %v, want %q", service, err, want)
		}
	}
	if err := prober(t, Config{}).Check(t.Context(), grpcServer(t, nil)); err == nil || !strings.Contains(err.Error(), "has no gRPC health service") {
		t.Errorf("without a health service: %v", err)
	}
}

// answering is a health service whose responses the test sets.
type answering struct {
	grpc_health_v1.UnimplementedHealthServer
	check func(context.Context) error
}

func (a answering) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if err := a.check(ctx); err != nil {
		return nil, err
	}
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

func TestGRPCProbeSendsUserAgent(t *testing.T) {
	var from, agent string
	spec := grpcServer(t, answering{check: func(ctx context.Context) error {
		p, _ := peer.FromContext(ctx)
		md, _ := metadata.FromIncomingContext(ctx)
		from, agent = p.Addr.String(), md.Get("user-agent")[0]
		return nil
	}})
	for given, want := range map[string]string{"kube-probe/1.34": "kube-probe/1.34 ", "": "istio-probe/1.0 "} {
		if err := prober(t, Config{}).GRPC(t.Context(), spec, given); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(from, "127.0.0.6:") || !strings.HasPrefix(agent, want) {
			t.Errorf("request from %s with user agent %q, want %q", from, agent, want)
		}
	}
}

func TestHostileGRPCServersEndInTime(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	slow := answering{check: func(context.Context) error { <-release; return nil }}
	header := answering{check: func(ctx context.Context) error {
		_ = grpc.SetHeader(ctx, metadata.Pairs("x", strings.Repeat("y", 2*maxHeader)))
		return nil
	}}
	failing := answering{check: func(context.Context) error { return status.Error(codes.Internal, strings.Repeat("z", 1000)) }}
	silent := raw(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	http1 := raw(t, func(conn net.Conn) { _, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")) })
	asGRPC := func(s Spec, timeout time.Duration) Spec {
		if s.HTTP != nil {
			s.GRPC, s.HTTP = &GRPC{Host: s.HTTP.Host, Port: s.HTTP.Port}, nil
		}
		s.Timeout = timeout
		return s
	}
	closed := listen(t)
	_ = closed.Close()
	for _, c := range []struct {
		name, want string
		spec       Spec
	}{
		{"never answers", "no response within 50ms", asGRPC(grpcServer(t, slow), 50*time.Millisecond)},
		{"never answers, and the probe has no timeout", "no response within 1s", asGRPC(grpcServer(t, slow), 0)},
		{"huge header", "", asGRPC(grpcServer(t, header), soon)},
		{"failure", "Internal: zzz", asGRPC(grpcServer(t, failing), soon)},
		{"accepts only", "no response within 50ms", asGRPC(silent, 50*time.Millisecond)},
		{"HTTP/1.1", "Unavailable", asGRPC(http1, soon)},
		{"nobody there", "Unavailable", asGRPC(httpSpec(addressOf(closed), ""), soon)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := prober(t, Config{}).Check(t.Context(), c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that contains %q", err, c.want)
			}
		})
	}
}
