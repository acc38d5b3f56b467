package lifecycle

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// faultyPlane is a proxy between an agent and its control plane. It forwards their messages, and injects messages in
// the control plane's name.
type faultyPlane struct {
	upstream *grpc.ClientConn

	mu      sync.Mutex // held while something is sent on stream
	stream  grpc.ServerStream
	streams int // number of streams that have begun
}

// rawCodec passes messages on as they are.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// startFaultyPlane starts a faultyPlane for a remote control plane, with a certificate of the same authority.
func startFaultyPlane(t testing.TB, f *remotePlanes, address string) *faultyPlane {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.authority.RootPEM())
	upstream, err := grpc.NewClient(f.SecureAddr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		t.Fatal(err)
	}
	l := &faultyPlane{upstream: upstream}
	host, _, _ := net.SplitHostPort(address)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(f.authority.ServerTLS(host))), grpc.ForceServerCodec(rawCodec{}),
		grpc.UnknownServiceHandler(l.relay), grpc.MaxSendMsgSize(math.MaxInt32))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); _ = upstream.Close() })
	return l
}

func (l *faultyPlane) relay(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	in, _ := metadata.FromIncomingContext(down.Context())
	ctx := metadata.NewOutgoingContext(down.Context(), metadata.MD{"authorization": in["authorization"], "clusterid": in["clusterid"]})
	up, err := l.upstream.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if strings.HasSuffix(method, "DeltaAggregatedResources") {
		l.mu.Lock()
		l.stream, l.streams = down, l.streams+1
		l.mu.Unlock()
	}
	go forward(down, up)
	for {
		var message []byte
		if err := up.RecvMsg(&message); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := l.send(down, message); err != nil {
			return err
		}
	}
}

// injectedNonce is the prefix of the nonces of injected messages. Their ACKs and NACKs are not forwarded to the control
// plane.
const injectedNonce = "lie-"

func forward(down grpc.ServerStream, up grpc.ClientStream) {
	defer func() { _ = up.CloseSend() }()
	for {
		var message []byte
		if down.RecvMsg(&message) != nil {
			return
		}
		var request discoveryv3.DeltaDiscoveryRequest
		if proto.Unmarshal(message, &request) == nil && strings.HasPrefix(request.GetResponseNonce(), injectedNonce) {
			continue
		}
		if up.SendMsg(&message) != nil {
			return
		}
	}
}

func (l *faultyPlane) send(down grpc.ServerStream, message []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return down.SendMsg(&message)
}

// inject sends a message on the agent's stream.
func (l *faultyPlane) inject(message []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream.SendMsg(&message)
}

func (l *faultyPlane) countStreams() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams
}

func response(t testing.TB, r *discoveryv3.DeltaDiscoveryResponse) []byte {
	t.Helper()
	out, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const (
	clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	routeType   = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// TestFaultyControlPlaneDoesNoHarm: an injected message ends the stream at worst, and the true configuration is applied
// afterwards.
func TestFaultyControlPlaneDoesNoHarm(t *testing.T) {
	const address = "127.198.9.1:15012"
	far := newRemotePlanes(t)
	l := startFaultyPlane(t, far, address)
	m := newMesh(t, far, address)
	route := func(name string) *discoveryv3.Resource {
		return &discoveryv3.Resource{Name: name, Version: "1", Resource: &anypb.Any{TypeUrl: routeType, Value: []byte{0x0a, 1, 'x'}}}
	}
	faults := map[string]func() error{
		"garbage": func() error {
			garbage := make([]byte, 1000)
			_, _ = rand.Read(garbage)
			return l.inject(append([]byte{0xff}, garbage...))
		},
		"a nonce of nowhere": func() error {
			return l.inject(response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: injectedNonce + "nowhere"}))
		},
		"no nonce": func() error {
			return l.inject(response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType}))
		},
		"a type that nobody asked for": func() error {
			return l.inject(response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "type.googleapis.com/nobody.Asked", Nonce: injectedNonce + "type",
				Resources: []*discoveryv3.Resource{route("x")}}))
		},
		"routes as clusters": func() error {
			return l.inject(response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: injectedNonce + "mixed",
				Resources: []*discoveryv3.Resource{route("x")}}))
		},
		"a message of 1 GiB": func() error { return l.inject(make([]byte, 1<<30)) },
		"endless empty responses": func() error {
			for end := time.Now().Add(outage); time.Now().Before(end); {
				for n := range 1000 {
					empty := response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: injectedNonce + strconv.Itoa(n)})
					if err := l.inject(empty); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	for what, inject := range faults {
		m.runUnderLoad(what, func() {
			before := l.countStreams()
			if err := inject(); err != nil {
				t.Logf("%s: the stream ended: %v", what, err)
			}
			m.edit()
			m.waitFor(m.generation)
			t.Logf("%s: %d streams since", what, l.countStreams()-before)
			time.Sleep(outage / 4)
		})
	}
	if rss := residentMiB(t, m.client.agent.Process.Pid); rss > 100 {
		t.Errorf("the agent has grown to %d MiB", rss)
	} else {
		t.Logf("the agent takes %d MiB after all that", rss)
	}
	m.compareWithUndisturbedRun()
}

// residentMiB is the memory that a process has resident.
func residentMiB(t testing.TB, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(text), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("the kernel does not tell how much memory the process has")
	return 0
}
