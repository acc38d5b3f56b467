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

// liar stands between an agent and its control plane. It passes on what they say, and says things of its own in the
// control plane's name.
type liar struct {
	upstream *grpc.ClientConn

	mu      sync.Mutex // held while something is sent on stream
	stream  grpc.ServerStream
	streams int // so many have begun
}

// untouched passes messages on as they are.
type untouched struct{}

func (untouched) Name() string                  { return "proto" }
func (untouched) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (untouched) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// startLiar starts one for the control plane far away, with a certificate of the same authority.
func startLiar(t testing.TB, f *farAway, address string) *liar {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.authority.RootPEM())
	upstream, err := grpc.NewClient(f.SecureAddr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(untouched{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{upstream: upstream}
	host, _, _ := net.SplitHostPort(address)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(f.authority.ServerTLS(host))), grpc.ForceServerCodec(untouched{}),
		grpc.UnknownServiceHandler(l.relay), grpc.MaxSendMsgSize(math.MaxInt32))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); _ = upstream.Close() })
	return l
}

func (l *liar) relay(_ any, down grpc.ServerStream) error {
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

// lie begins the nonces of what the liar says, of which the control plane hears nothing.
const lie = "lie-"

func forward(down grpc.ServerStream, up grpc.ClientStream) {
	defer func() { _ = up.CloseSend() }()
	for {
		var message []byte
		if down.RecvMsg(&message) != nil {
			return
		}
		var request discoveryv3.DeltaDiscoveryRequest
		if proto.Unmarshal(message, &request) == nil && strings.HasPrefix(request.GetResponseNonce(), lie) {
			continue
		}
		if up.SendMsg(&message) != nil {
			return
		}
	}
}

func (l *liar) send(down grpc.ServerStream, message []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return down.SendMsg(&message)
}

// say sends a message of the liar's own on the agent's stream.
func (l *liar) say(message []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream.SendMsg(&message)
}

func (l *liar) begun() int {
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

// TestControlPlaneThatLiesDoesNoHarm: the lies end the stream at worst, and the truth is in force after them.
func TestControlPlaneThatLiesDoesNoHarm(t *testing.T) {
	const address = "127.198.9.1:15012"
	far := newFarAway(t)
	l := startLiar(t, far, address)
	m := newMesh(t, far, address)
	route := func(name string) *discoveryv3.Resource {
		return &discoveryv3.Resource{Name: name, Version: "1", Resource: &anypb.Any{TypeUrl: routeType, Value: []byte{0x0a, 1, 'x'}}}
	}
	lies := map[string]func() error{
		"garbage": func() error {
			garbage := make([]byte, 1000)
			_, _ = rand.Read(garbage)
			return l.say(append([]byte{0xff}, garbage...))
		},
		"a nonce of nowhere": func() error {
			return l.say(response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: lie + "nowhere"}))
		},
		"no nonce": func() error {
			return l.say(response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType}))
		},
		"a type that nobody asked for": func() error {
			return l.say(response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: "type.googleapis.com/nobody.Asked", Nonce: lie + "type",
				Resources: []*discoveryv3.Resource{route("x")}}))
		},
		"routes as clusters": func() error {
			return l.say(response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: lie + "mixed",
				Resources: []*discoveryv3.Resource{route("x")}}))
		},
		"a message of 1 GiB": func() error { return l.say(make([]byte, 1<<30)) },
		"endless empty responses": func() error {
			for end := time.Now().Add(outage); time.Now().Before(end); {
				for n := range 1000 {
					empty := response(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: lie + strconv.Itoa(n)})
					if err := l.say(empty); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	for what, tell := range lies {
		m.under(what, func() {
			before := l.begun()
			if err := tell(); err != nil {
				t.Logf("%s: the stream ended: %v", what, err)
			}
			m.edit()
			m.waitFor(m.generation)
			t.Logf("%s: %d streams since", what, l.begun()-before)
			time.Sleep(outage / 4)
		})
	}
	if rss := residentMiB(t, m.client.agent.Process.Pid); rss > 100 {
		t.Errorf("the agent has grown to %d MiB", rss)
	} else {
		t.Logf("the agent takes %d MiB after all that", rss)
	}
	m.endsLikeAnUndisturbedRun()
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
