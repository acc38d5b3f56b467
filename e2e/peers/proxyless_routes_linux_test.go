package peers

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestGRPCClientAppliesFaultsWeightsRetriesAndTimeouts: gRPC's own client applies the rules to its calls.
func TestGRPCClientAppliesFaultsWeightsRetriesAndTimeouts(t *testing.T) {
	t.Parallel()
	m := newGRPCMesh(t, "127.193.3", greeters, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: greeter, namespace: default}
spec:
  hosts: [greeter]
  http:
  - match: [{headers: {X-Fault: {exact: abort}}}]
    fault: {abort: {grpcStatus: RESOURCE_EXHAUSTED, percentage: {value: 100}}}
    route: [{destination: {host: greeter}}]
  - match: [{headers: {x-fault: {exact: delay}}}]
    fault: {delay: {fixedDelay: 0.5s, percentage: {value: 100}}}
    route: [{destination: {host: greeter, subset: v1}}]
  - match: [{headers: {x-weighted: {}}}]
    route: [{destination: {host: greeter, subset: v1}, weight: 80}, {destination: {host: greeter, subset: v2}, weight: 20}]
  - match: [{headers: {x-slow: {}}}]
    timeout: 0.3s
    route: [{destination: {host: greeter, subset: v1}}]
  - match: [{headers: {x-fails: {}}, withoutHeaders: {x-final: {}}}]
    retries: {attempts: 3, retryOn: unavailable}
    route: [{destination: {host: greeter, subset: v1}}]
  - match: [{headers: {x-fails: {}}}]
    retries: {attempts: 0}
    route: [{destination: {host: greeter, subset: v1}}]
  - match: [{withoutHeaders: {x-version: {exact: v2}}}]
    route: [{destination: {host: greeter, subset: v1}}]
  - route: [{destination: {host: greeter, subset: v2}}]
`)
	one, two := m.address(11)+":7001", m.address(12)+":7001"
	var fails atomic.Int32
	listen(t, one, grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		switch {
		case len(md["x-slow"]) > 0:
			// An answer at the deadline would race the client's own timer, and could win.
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		case len(md["x-fails"]) > 0 && fails.Add(-1) >= 0:
			return nil, status.Error(codes.Unavailable, "not yet")
		}
		return next(ctx, r)
	}))
	listen(t, two)
	call := m.workload(m.address(20), "default/caller", "").caller(t)
	always(t, call, "greeter:7000", one)
	for _, c := range []struct {
		with, want string
		fails      int32
	}{
		{with: "x-version=v2", want: two},
		{with: "x-version=v3", want: one},
		{with: "x-fault=abort", want: "ResourceExhausted"},
		{with: "x-slow=yes", want: "DeadlineExceeded"},
		{with: "x-fails=yes", want: one, fails: 2},
		{with: "x-fails=yes x-final=yes", want: "Unavailable", fails: 1},
	} {
		fails.Store(c.fails)
		if got := call("greeter:7000 " + c.with); !strings.Contains(got, c.want) {
			t.Errorf("a call with %s is answered: %s; want %s", c.with, got, c.want)
		}
	}
	begun := time.Now()
	if got := call("greeter:7000 x-fault=delay"); got != one || time.Since(begun) < 500*time.Millisecond {
		t.Errorf("a call that is delayed is answered by %s after %v", got, time.Since(begun))
	}
	seen := map[string]int{}
	for range 300 {
		seen[call("greeter:7000 x-weighted=yes")]++
	}
	if n := seen[two]; n < 20 || n > 110 || seen[one]+n != 300 {
		t.Errorf("of 300 calls, 80 to 20: %v", seen)
	}
}
