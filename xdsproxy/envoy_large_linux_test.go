package xdsproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/rawgrpc"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// largeClusters returns the target and fillers of about 3 MB.
func largeClusters(target proto.Message) []proto.Message {
	clusters := []proto.Message{target}
	for i := range 1500 {
		clusters = append(clusters, &clusterv3.Cluster{Name: fmt.Sprintf("filler%d", i), AltStatName: strings.Repeat("x", 2000)})
	}
	return clusters
}

// TestEnvoyAcceptsLargeChunkedResponse: Envoy serves with it, and it is stored.
func TestEnvoyAcceptsLargeChunkedResponse(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(version+" "+protocol, func(t *testing.T) { testChunkedResponse(t, testenv.EnvoyOf(t, version), protocol) })
		}
	}
}

func testChunkedResponse(t *testing.T, binary, protocol string) {
	dir := t.TempDir()
	port := portOf(t, freeAddress(t))
	clusters := largeClusters(newCluster(t, startBackend(t, "large")))
	cp := &snapshot{resources: map[string][]proto.Message{clusterType: clusters, listenerType: {newListener(port)}}}
	address, _ := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Socket: dir + "/XDS", Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}}})
	diskWriterOf(t, relay)
	envoytest.Start(t, binary, dir, fmt.Sprintf(envoyBootstrap, protocol))
	testenv.Eventually(t, "it serves", func() error { return checkResponse(fmt.Sprintf("http://127.0.0.1:%d", port), "large") })
	waitStored(t, relay, time.Time{})
	if k := relay.Status().LastGood.Storage; k.Bytes < 1500*2000 || relay.isUnchunkable.Load() || relay.isChunkBroken.Load() {
		t.Errorf("%d bytes are stored; unchunkable %v, broken %v", k.Bytes, relay.isUnchunkable.Load(), relay.isChunkBroken.Load())
	}
	if st := typeStatus(relay, clusterType); st.Nacks != 0 || st.LastResources != len(clusters) {
		t.Errorf("%+v", st)
	}
}

// TestEnvoyServesWhileLargeResponseIsCutOff: Envoy serves with its former configuration, receives the complete response
// on a second stream, and then has exactly that.
func TestEnvoyServesWhileLargeResponseIsCutOff(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(version+" "+protocol, func(t *testing.T) { testCutOffResponse(t, testenv.EnvoyOf(t, version), protocol) })
		}
	}
}

func testCutOffResponse(t *testing.T, binary, protocol string) {
	dir := t.TempDir()
	port := portOf(t, freeAddress(t))
	before := map[string][]proto.Message{clusterType: {newCluster(t, startBackend(t, "first"))}, listenerType: {newListener(port)}}
	after := map[string][]proto.Message{clusterType: largeClusters(newCluster(t, startBackend(t, "second"))), listenerType: {newListener(port)}}
	cp := &breakingControlPlane{protocol: protocol, before: encodeResponses(t, protocol, before), breakAfter: encodeResponses(t, protocol, after), failing: make(chan struct{}), recovered: make(chan struct{})}
	relay := start(t, Config{Socket: dir + "/XDS", Upstreams: []string{cp.listen(t)}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}}})
	diskWriterOf(t, relay)
	envoy := envoytest.Start(t, binary, dir, fmt.Sprintf(envoyBootstrap, protocol))
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	testenv.Eventually(t, "it serves", func() error { return checkResponse(url, "first") })
	waitStored(t, relay, time.Time{})

	load := startLoad(url)
	close(cp.failing)
	testenv.Eventually(t, "a response breaks in the middle", func() error {
		if !relay.isChunkBroken.Load() {
			return errors.New("none has")
		}
		return nil
	})
	load.waitMore(t, 50)
	if err := checkResponse(url, "first"); err != nil {
		t.Error(err)
	}
	close(cp.recovered)
	testenv.Eventually(t, "the new configuration is in force", func() error { return checkResponse(url, "second") })
	if failed := load.stopAndCheck(); failed != 0 {
		t.Errorf("%d requests failed", failed)
	}
	testenv.Eventually(t, "Envoy has the clusters that an undisturbed one has", func() error { return checkClusters(envoy, after[clusterType]) })
	streams := 0
	for _, e := range relay.History().Events {
		if e.Kind == EventEnvoy {
			streams++
		}
	}
	if streams != 2 {
		t.Errorf("Envoy had %d streams", streams)
	}
}

// checkClusters returns an error if Envoy's clusters differ from want.
func checkClusters(envoy *envoytest.Envoy, want []proto.Message) error {
	text, err := envoy.Get("/config_dump?resource=dynamic_active_clusters")
	if err != nil {
		return err
	}
	var dump struct {
		Configs []struct{ Cluster json.RawMessage }
	}
	if err := json.Unmarshal([]byte(text), &dump); err != nil {
		return err
	}
	missing := make(map[string]proto.Message)
	for _, m := range want {
		missing[m.(*clusterv3.Cluster).Name] = m
	}
	for _, one := range dump.Configs {
		var has clusterv3.Cluster
		if err := protojson.Unmarshal(withoutType(one.Cluster), &has); err != nil {
			return err
		}
		if !proto.Equal(&has, missing[has.Name]) {
			return fmt.Errorf("it has %s in another version, twice, or for nothing", has.Name)
		}
		delete(missing, has.Name)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d of %d are missing", len(missing), len(want))
	}
	return nil
}

// withoutType returns a JSON message without "@type".
func withoutType(text []byte) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil {
		return text
	}
	delete(fields, "@type")
	text, _ = json.Marshal(fields)
	return text
}

// encodeResponses returns encoded responses with the resources, by type.
func encodeResponses(t *testing.T, protocol string, resources map[string][]proto.Message) map[string][]byte {
	t.Helper()
	all := &snapshot{resources: resources}
	out := make(map[string][]byte)
	for typeURL := range resources {
		sotw := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: "1", Nonce: typeURL}
		deltas := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, SystemVersionInfo: "1", Nonce: typeURL}
		for _, body := range all.get(typeURL) {
			sotw.Resources = append(sotw.Resources, body)
			deltas.Resources = append(deltas.Resources, &discoveryv3.Resource{Name: nameOf(body), Version: "1", Resource: body})
		}
		out[typeURL] = marshal(t, deltas)
		if protocol == "GRPC" {
			out[typeURL] = marshal(t, sotw)
		}
	}
	return out
}

// breakingControlPlane fails after three quarters of its second response of clusters, and refuses all streams until
// recovered is closed.
type breakingControlPlane struct {
	protocol           string
	before, breakAfter map[string][]byte
	failing, recovered chan struct{}
	streams            atomic.Int32
}

func (b *breakingControlPlane) listen(t *testing.T) (address string) {
	t.Helper()
	server := rawgrpc.NewServer(map[string]rawgrpc.Handler{delta.method(): b.serve, sotw.method(): b.serve}, 64<<20, nil, slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return l.Addr().String()
}

func (b *breakingControlPlane) serve(s *rawgrpc.ServerStream) error {
	if b.streams.Add(1) == 1 {
		if err := b.answer(s, b.before, 1); err != nil {
			return err
		}
		<-b.failing
		clusters := b.breakAfter[clusterType]
		part := mem.BufferSlice{mem.SliceBuffer(clusters[:len(clusters)*3/4])}
		return errors.Join(s.BeginMessage(len(clusters)), s.WritePiece(part), s.Flush(), errors.New("control plane failed"))
	}
	select {
	case <-b.recovered:
		return b.answer(s, b.breakAfter, math.MaxInt)
	default:
		return errors.New("control plane is down")
	}
}

// answer answers the first request of each type until Envoy has accepted listeners the given number of times.
func (b *breakingControlPlane) answer(s *rawgrpc.ServerStream, responses map[string][]byte, accepted int) error {
	v := delta
	if b.protocol == "GRPC" {
		v = sotw
	}
	answered := make(map[string]bool)
	for {
		if _, err := s.Next(); err != nil {
			return err
		}
		data, err := s.ReadRest(nil)
		if err != nil {
			return err
		}
		r, err := peekRequest(v, data)
		data.Free()
		if err != nil {
			return err
		}
		if r.typeURL == listenerType && r.nonce != "" && answered[listenerType] {
			if accepted--; accepted == 0 {
				return nil
			}
		}
		if response := responses[r.typeURL]; response != nil && !answered[r.typeURL] {
			answered[r.typeURL] = true
			if err := s.Send(mem.BufferSlice{mem.SliceBuffer(response)}, false); err != nil {
				return err
			}
		}
	}
}
