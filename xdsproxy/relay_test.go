package xdsproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

func TestMessagesWithUnknownFieldsPassUnchanged(t *testing.T) {
	unknown := []byte{0xc2, 0x3e, 3, 'n', 'e', 'w'} // field 1000
	got := make(chan *discoveryv3.DeltaDiscoveryRequest, 1)
	response := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: clusterURL, Nonce: "n", SystemVersionInfo: "7", RemovedResources: []string{"gone"},
		Resources: []*discoveryv3.Resource{{Name: "a", Version: "1", Resource: &anypb.Any{TypeUrl: clusterURL, Value: []byte("x")}}},
	}
	response.ProtoReflect().SetUnknown(unknown)
	cp := &fakeControlPlane{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		request, err := s.Recv()
		if err != nil {
			return err
		}
		got <- request
		if err := s.Send(response); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})

	request := &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~1"}, TypeUrl: clusterURL, ResourceNamesSubscribe: []string{"*", "b"},
		InitialResourceVersions: map[string]string{"a": "0"},
	}
	request.ProtoReflect().SetUnknown(unknown)
	stream := deltaStream(t, relay)
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(request, <-got, protocmp.Transform()); d != "" {
		t.Errorf("the relay changed the request:\n%s", d)
	}
	if d := cmp.Diff(response, answer, protocmp.Transform()); d != "" {
		t.Errorf("the relay changed the response:\n%s", d)
	}
	s := typeStatus(relay, clusterURL)
	if !s.Wildcard || s.Subscribed != 1 || s.State != StatePending {
		t.Errorf("status after the response = %+v, want wildcard, one name, pending", s)
	}
}

func TestStreamWaitsForControlPlane(t *testing.T) {
	address := freeAddress(t)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	testenv.Eventually(t, "the condition has the reason", func() error {
		if ok, reason := relay.Health(); ok || !strings.Contains(reason, address) || !strings.Contains(reason, "connection refused") {
			return fmt.Errorf("health = %v, %q", ok, reason)
		}
		return nil
	})

	newAnsweringControlPlane([]byte("c")).listen(t, address, nil)
	if r := receive(t, stream); r.VersionInfo != "v1" {
		t.Errorf("got %v", r)
	}
	waitConnected(t, relay)
	if ok, reason := relay.Health(); !ok || reason != "" {
		t.Errorf("health = %v, %q after a response", ok, reason)
	}
}

func TestRefusedStreamIsRetriedWithSameRequests(t *testing.T) {
	var attempts atomic.Int32
	good := newAnsweringControlPlane([]byte("c"))
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		if attempts.Add(1) < 4 {
			if _, err := s.Recv(); err != nil {
				return err
			}
			return status.Error(codes.Unavailable, "not synchronised yet")
		}
		return good.sotw(s)
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL, Node: &corev3.Node{Id: "n"}})
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
	for _, want := range []string{clusterURL, listenerType} {
		if got := receive(t, stream).TypeUrl; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestLostControlPlaneRetainsStreamAndReadiness(t *testing.T) {
	address, stop := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	registry := prometheus.NewRegistry()
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, Metrics: registry})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, stream)
	waitConnected(t, relay)

	stop()
	testenv.Eventually(t, "the reason is connection refused", func() error {
		ok, reason := relay.Health()
		if !ok {
			t.Fatalf("not ready any more: %s", reason)
		}
		if !strings.Contains(reason, "not connected to the control plane "+address) || !strings.Contains(reason, "connection refused") ||
			!strings.Contains(reason, "last accepted configuration") {
			return errors.New(reason)
		}
		return nil
	})
	if !relay.Status().EnvoyConnected {
		t.Error("Envoy's stream ended with the control plane")
	}

	newAnsweringControlPlane([]byte("c")).listen(t, address, nil)
	receive(t, stream)
	waitConnected(t, relay)
	if got := testutil.ToFloat64(relay.tracker.metrics.upstreamEnds.WithLabelValues("error")); got != 1 {
		t.Errorf("counted %v broken streams, want 1", got)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil {
		t.Error(err, problems)
	}
}

func TestRestartedEnvoyFindsConnectionReady(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	first := dialRelay(t, relay)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(first).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, stream)
	_ = first.Close() // as if Envoy was killed
	testenv.Eventually(t, "the relay records that Envoy has disconnected", func() error {
		if relay.Status().EnvoyConnected {
			return errors.New("still there")
		}
		return nil
	})
	second := sotwStream(t, relay)
	send(t, second, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, second)
}

func TestNewStreamDisplacesOldStream(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	old := sotwStream(t, relay)
	send(t, old, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, old)
	young := sotwStream(t, relay)
	send(t, young, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, young)
	if _, err := old.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the old stream ended with %v, want Aborted", err)
	}
	if !relay.Status().EnvoyConnected {
		t.Error("the relay treated the end of the old stream as the end of the new one")
	}
}

func TestAcksAndNacksAreRecorded(t *testing.T) {
	var nonce atomic.Int32
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		for {
			request, err := s.Recv()
			if err != nil {
				return err
			}
			n := nonce.Add(1)
			if n > 3 {
				continue
			}
			if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: request.TypeUrl, VersionInfo: fmt.Sprintf("v%d", n), Nonce: fmt.Sprint(n)}); err != nil {
				return err
			}
		}
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	log := &testenv.Buffer{}
	relay := start(t, Config{Logger: slog.New(slog.NewTextHandler(log, nil)), Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	nack := func(r *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
		return &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL, ResponseNonce: r.Nonce,
			ErrorDetail: &rpcstatus.Status{Code: 13, Message: "cluster broken: no endpoints in -----BEGIN PRIVATE KEY-----\n" + marker + "\n-----END PRIVATE KEY-----"}}
	}

	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	send(t, stream, nack(receive(t, stream)))
	second := receive(t, stream)
	testenv.Eventually(t, "the first rejection makes Envoy unready", func() error {
		ok, reason := relay.Health()
		if ok || !strings.Contains(reason, "cluster broken: no endpoints") {
			return fmt.Errorf("health = %v, %q", ok, reason)
		}
		return nil
	})

	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL, VersionInfo: "v2", ResponseNonce: second.Nonce})
	third := receive(t, stream)
	if s := typeStatus(relay, clusterURL); s.Acks != 1 || s.Nacks != 1 || s.Version != "v2" || s.State != StatePending {
		t.Errorf("after an ACK: %+v", s)
	}
	send(t, stream, nack(third))
	testenv.Eventually(t, "the later rejection is reported and Envoy remains ready", func() error {
		s := typeStatus(relay, clusterURL)
		ok, reason := relay.Health()
		if !ok || !strings.Contains(reason, "continues with the last accepted one") || s.State != StateRejected || s.Version != "v2" ||
			s.LastNack == nil || s.LastNack.Version != "v3" || s.Nacks != 2 {
			return fmt.Errorf("health = %v, %q; status = %+v", ok, reason, s)
		}
		return nil
	})
	shown, err := json.Marshal([]any{relay.Status(), relay.History()})
	if err != nil || bytes.Contains(shown, []byte(marker)) || strings.Contains(log.String(), marker) {
		t.Errorf("a secret that Envoy quoted is not redacted: %s\n%s\n%v", shown, log, err)
	}
}

// TestEnvoyWithoutRoutesIsNotReady: Envoy would respond with 404 to all requests.
func TestEnvoyWithoutRoutesIsNotReady(t *testing.T) {
	const routeURL = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	now := time.Now()
	l := newStatusTracker(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	l.markEnvoyConnected(wire.SotW, 1)
	l.markReachable("127.0.0.1:1")
	l.markConnected("127.0.0.1:1")
	exchange := func(typeURL, nonce, reason string) {
		l.recordResponse(wire.Response{TypeURL: typeURL, Nonce: nonce, Version: nonce}, 1)
		l.recordRequest(wire.SotW, wire.Request{TypeURL: typeURL, Nonce: nonce, Names: []string{"n"}, Rejected: reason != "", Reason: reason}, wire.Response{})
	}
	exchange(clusterURL, "1", "")
	exchange(routeURL, "2", "http_proxy: response body size is 5000 bytes")
	if ok, reason := healthOf(l); ok || !strings.Contains(reason, "first RouteConfiguration configuration: http_proxy: response body size") {
		t.Errorf("without accepted routes: %v, %q", ok, reason)
	}
	exchange(routeURL, "3", "")
	if ok, reason := healthOf(l); !ok || reason != "" {
		t.Errorf("with routes: %v, %q", ok, reason)
	}
	exchange(routeURL, "4", "http_proxy: again")
	if ok, reason := healthOf(l); !ok || !strings.Contains(reason, "continues with the last accepted one: http_proxy: again") {
		t.Errorf("with routes that it accepted before: %v, %q", ok, reason)
	}
}

func TestLargeResponsePasses(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 50<<20/16)
	address, _ := newAnsweringControlPlane(content).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	if r := receive(t, stream); !bytes.Equal(r.Resources[0].Value, content) {
		t.Errorf("received %d bytes, or different ones", len(r.Resources[0].Value))
	}
	if s := typeStatus(relay, clusterURL); s.ResponseBytes < 50<<20 || s.LastResources != 1 {
		t.Errorf("status = %+v", s)
	}
}

// A peer that does not read blocks the other peer; the relay does not buffer messages.
func TestControlPlaneThatDoesNotReadBlocksEnvoy(t *testing.T) {
	const piece, pieces, bound = 64 << 10, 1000, 400
	payload := strings.Repeat("x", piece)
	read := make(chan struct{})
	var seen, sent atomic.Int32
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		<-read
		for {
			if _, err := s.Recv(); err != nil {
				return nil
			}
			seen.Add(1)
		}
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	waitConnected(t, relay) // earlier requests may be sent again in another form
	done := make(chan error, 1)
	go func() {
		for range pieces {
			if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterURL, VersionInfo: payload}); err != nil {
				done <- err
				return
			}
			sent.Add(1)
		}
		done <- nil
	}()
	if got := waitStable(&sent); got > bound {
		t.Errorf("%d requests of 64 KiB were accepted although the control plane does not read", got)
	}
	close(read)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "all requests arrive when the control plane reads", func() error {
		if n := seen.Load(); n != pieces {
			return fmt.Errorf("%d arrived", n)
		}
		return nil
	})
}

func TestEnvoyThatDoesNotReadBlocksControlPlane(t *testing.T) {
	const pieces, bound = 1000, 400
	content := bytes.Repeat([]byte("x"), 64<<10)
	var sent atomic.Int32
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		for i := range pieces {
			if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: clusterURL, Nonce: fmt.Sprint(i), Resources: []*anypb.Any{{Value: content}}}); err != nil {
				return err
			}
			sent.Add(1)
		}
		<-s.Context().Done()
		return nil
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	if got := waitStable(&sent); got > bound {
		t.Errorf("%d responses of 64 KiB were accepted although Envoy does not read", got)
	}
	for i := range pieces {
		if r := receive(t, stream); r.Nonce != fmt.Sprint(i) {
			t.Fatalf("response %d has nonce %s", i, r.Nonce)
		}
	}
	if pending := len(relay.tracker.types[clusterURL].pending); pending > maxPending {
		t.Errorf("%d pending responses are recorded, want at most %d", pending, maxPending)
	}
}

// waitStable returns the counter's value after it has started and then not changed for a while.
func waitStable(counter *atomic.Int32) int32 {
	for last, still := int32(-1), 0; ; {
		now := counter.Load()
		if now == last && now > 0 {
			still++
		} else {
			still = 0
		}
		if still == 30 {
			return now
		}
		last = now
		time.Sleep(5 * time.Millisecond)
	}
}

func TestStreamEndsWithEnvoysHalfClose(t *testing.T) {
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		for {
			if _, err := s.Recv(); err != nil {
				return nil
			}
		}
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v, want an orderly end", err)
	}
}

func TestHeadersAreSentUpstream(t *testing.T) {
	seen := make(chan metadata.MD, 1)
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		seen <- md
		<-s.Context().Done()
		return nil
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true, TokenFile: token,
		ClusterID: "Kubernetes", Headers: map[string]string{"X-Tenant": "blue"}}})
	sotwStream(t, relay)
	md := <-seen
	if got := md.Get("clusterid"); len(got) != 1 || got[0] != "Kubernetes" {
		t.Errorf("ClusterID = %q", got)
	}
	if got := md.Get("x-tenant"); len(got) != 1 || got[0] != "blue" {
		t.Errorf("X-Tenant = %q", got)
	}
	if got := md.Get("authorization"); len(got) != 0 {
		t.Error("the token was sent over a plaintext connection")
	}
}

func TestAnyControlPlaneIsUsed(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{freeAddress(t), address, freeAddress(t)}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, stream)
	waitConnected(t, relay)
	if got := relay.Status().Upstream; got != address {
		t.Errorf("connected to %s, want %s", got, address)
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, AllowedUIDs: []uint32{uint32(os.Geteuid()) + 4242}})
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dialRelay(t, relay)).StreamAggregatedResources(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		t.Error("a user that is not in AllowedUIDs was accepted")
	}
}

func TestSocketOfADeadRelayIsReplaced(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "XDS")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	relay := start(t, Config{Socket: socket, Upstreams: []string{freeAddress(t)}, Server: Server{Plaintext: true}})
	dialRelay(t, relay)
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has %v, %v; want mode 0600", info.Mode(), err)
	}

	second, err := New(relay.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "another process listens on it") {
		t.Errorf("a second relay on a live socket: %v", err)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for name, c := range map[string]Config{
		"no socket":   {Upstreams: []string{"a:1"}},
		"no upstream": {Socket: "s"},
		"no port":     {Socket: "s", Upstreams: []string{"istiod.istio-system.svc"}},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: the configuration was accepted", name)
		}
	}
}
