package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"
)

// defaultGRPCTimeout is Kubernetes' default timeout of a gRPC probe.
const defaultGRPCTimeout = time.Second

// GRPC runs the probe of s.GRPC. It returns nil when the health service reports SERVING. userAgent may be empty.
func (p *Prober) GRPC(ctx context.Context, s Spec, userAgent string) error {
	if s.Timeout <= 0 {
		s.Timeout = defaultGRPCTimeout
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	if userAgent == "" {
		userAgent = defaultUserAgent
	}
	conn, err := grpc.NewClient("passthrough:///"+hostPort(s.GRPC.Host, s.GRPC.Port), grpcOptions(userAgent)...)
	if err != nil {
		return s.wrapError(ctx, err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: s.GRPC.Service})
	if err != nil {
		return s.wrapError(ctx, explainGRPC(err, s))
	}
	if got := answer.GetStatus(); got != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("%s: the health service responded %s", s, got)
	}
	return nil
}

func grpcOptions(userAgent string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }),
		grpc.WithNoProxy(),
		grpc.WithUserAgent(userAgent),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxBody)),
		grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithReadBufferSize(4 << 10),
		grpc.WithWriteBufferSize(4 << 10),
	}
}

func explainGRPC(err error, s Spec) error {
	switch status := grpcstatus.Convert(err); status.Code() {
	case codes.Unimplemented:
		return errors.New("the application has no gRPC health service (grpc.health.v1.Health)")
	case codes.NotFound:
		return fmt.Errorf("the application's health service does not know the service %q", s.GRPC.Service)
	case codes.DeadlineExceeded: // the server receives the probe's deadline, and can report it first
		return TimeoutError(s.Timeout)
	default:
		return fmt.Errorf("%s: %s", status.Code(), status.Message())
	}
}
