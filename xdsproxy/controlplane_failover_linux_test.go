package xdsproxy

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// Two control planes with TLS have one host name. First the one in use stops, later the other one.
func TestFailoverDoesNotDisturbEnvoy(t *testing.T) {
	for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
		t.Run(protocol, func(t *testing.T) { t.Parallel(); testFailover(t, protocol) })
	}
}

func testFailover(t *testing.T, protocol string) {
	const name = "istiod.istio-system.svc"
	dir := t.TempDir()
	authority := testpki.New(t, "root")
	roots := filepath.Join(dir, "root-cert.pem")
	write(t, roots, authority.PEM())
	served := newCluster(t, startBackend(t, "first"))
	more := func(n int) (all []proto.Message) {
		all = append(all, served)
		for i := range n {
			c := proto.CloneOf(served)
			c.Name = fmt.Sprint("more-", i)
			all = append(all, c)
		}
		return all
	}
	port := portOf(t, freeAddress(t))
	cp := &snapshot{resources: map[string][]proto.Message{
		clusterType: {served}, listenerType: {newListener(port)},
	}}
	hosts := []string{"127.152.4.1", "127.152.4.2"}
	one, stopOne := cp.upstream().listen(t, hosts[0]+":0", authority.ServerConfig(t, name))
	_, planePort, _ := net.SplitHostPort(one)
	_, stopTwo := cp.upstream().listen(t, net.JoinHostPort(hosts[1], planePort), authority.ServerConfig(t, name))
	stops := map[string]func(){hosts[0]: stopOne, hosts[1]: stopTwo}
	relay := start(t, Config{
		Socket: dir + "/XDS", Upstreams: []string{net.JoinHostPort(name, planePort)}, Lookup: newLookup(name, hosts...),
		Server: Server{TLS: TLS{RootFile: roots}},
	})
	envoytest.Start(t, testenv.Envoy(t), dir, fmt.Sprintf(envoyBootstrap, protocol))
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	testenv.Eventually(t, "traffic flows", func() error { return checkResponse(url, "first") })
	waitConnected(t, relay)
	load := startLoad(url)

	used := hostIn(t, relay, hosts)
	cp.set(clusterType, more(1)...)
	stops[used]()
	acceptedClusters(t, relay, 2)
	waitConnected(t, relay)
	if now := hostIn(t, relay, hosts); now == used {
		t.Errorf("still connected to %s, which has stopped", now)
	}

	cp.set(clusterType, more(2)...)
	cp.upstream().listen(t, net.JoinHostPort(used, planePort), authority.ServerConfig(t, name))
	for _, host := range hosts {
		if host != used {
			stops[host]()
		}
	}
	acceptedClusters(t, relay, 3)
	load.waitMore(t, 20)
	if failed := load.stopAndCheck(); failed != 0 {
		t.Errorf("%d requests failed", failed)
	}
	streams := 0
	for _, e := range relay.History().Events {
		if e.Kind == EventEnvoy {
			streams++
		}
	}
	if streams != 1 {
		t.Errorf("Envoy opened %d streams, want only the first one", streams)
	}
}

// acceptedClusters waits until Envoy has accepted a response with the number of clusters.
func acceptedClusters(t *testing.T, relay *Relay, clusters int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("Envoy accepts %d clusters", clusters), func() error {
		if s := typeStatus(relay, clusterType); s.LastResources != clusters || s.State != StateAcknowledged {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

func hostIn(t *testing.T, relay *Relay, hosts []string) string {
	t.Helper()
	for _, host := range hosts {
		if strings.Contains(relay.Status().Upstream, "("+host+":") {
			return host
		}
	}
	t.Fatalf("the relay is connected to %q", relay.Status().Upstream)
	return ""
}

func TestAllEnvoyVersionsNameRejectedResources(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(version+" "+protocol, func(t *testing.T) { t.Parallel(); testRejectedNames(t, version, protocol) })
		}
	}
}

func testRejectedNames(t *testing.T, version, protocol string) {
	dir := t.TempDir()
	good := newCluster(t, startBackend(t, "first"))
	good.LoadAssignment = nil
	good.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	named := func(name string) *clusterv3.Cluster {
		c := proto.CloneOf(good)
		c.Name = name
		return c
	}
	odd := func(name string) *clusterv3.Cluster {
		c := named(name)
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED // invalid for a static cluster
		return c
	}
	const bad, worse = "outbound|80||bad.default.svc.cluster.local", "outbound|80||bad.default.svc.cluster.local.example"
	cp := &snapshot{resources: map[string][]proto.Message{
		clusterType: {named("outbound|80||good.default.svc.cluster.local"), odd(bad), odd(worse), named("outbound|80||other.default.svc.cluster.local")},
	}}
	address, _ := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Socket: dir + "/XDS", Upstreams: []string{address}, Server: Server{Plaintext: true}})
	envoytest.Start(t, testenv.EnvoyOf(t, version), dir, fmt.Sprintf(envoyBootstrap, protocol))
	testenv.Eventually(t, "the status contains exactly both rejected resources", func() error {
		s := typeStatus(relay, clusterType)
		if len(s.Rejected) != 2 || s.Rejected[0].Name != bad || s.Rejected[1].Name != worse {
			return fmt.Errorf("%+v", s)
		}
		if strings.Contains(s.Rejected[0].Reason, worse) || s.Rejected[0].Reason == "" || s.Rejected[0].Count != 1 {
			return errors.New(s.Rejected[0].Reason)
		}
		return nil
	})
}
