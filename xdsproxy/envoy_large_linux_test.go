package xdsproxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
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

// TestEnvoyAcceptsLargeResponse: Envoy serves requests with the configuration, and the relay stores it.
func TestEnvoyAcceptsLargeResponse(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(version+" "+protocol, func(t *testing.T) { testLargeResponse(t, testenv.EnvoyOf(t, version), protocol) })
		}
	}
}

func testLargeResponse(t *testing.T, binary, protocol string) {
	dir := t.TempDir()
	port := portOf(t, freeAddress(t))
	clusters := largeClusters(newCluster(t, startBackend(t, "large")))
	cp := &snapshot{resources: map[string][]proto.Message{clusterType: clusters, listenerType: {newListener(port)}}}
	address, _ := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Socket: dir + "/XDS", Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}}})
	envoytest.Start(t, binary, dir, fmt.Sprintf(envoyBootstrap, protocol))
	testenv.Eventually(t, "Envoy serves requests", func() error { return checkResponse(fmt.Sprintf("http://127.0.0.1:%d", port), "large") })
	waitStored(t, relay, time.Time{})
	if k := relay.Status().LastGood.Storage; k.Bytes < 1500*2000 {
		t.Errorf("only %d bytes are stored", k.Bytes)
	}
	if st := typeStatus(relay, clusterType); st.Nacks != 0 || st.LastResources != len(clusters) {
		t.Errorf("%+v", st)
	}
}
