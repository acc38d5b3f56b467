package xdsproxy

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Names that differ only after thousands of characters are distinct. After a reconnect they are requested untruncated.
func TestLongNamesAreRequestedUntruncated(t *testing.T) {
	one, two := strings.Repeat("x", 5000)+"1", strings.Repeat("x", 5000)+"2"
	cp := newVersionedControlPlane()
	for _, name := range []string{one, two} {
		cp.set(clusterType, name, "1")
		cp.set(endpointType, name, "1")
	}
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll(one, two)
	all := map[string]string{"Cluster a": "1", "Cluster b": "1", "Listener in": "1"}
	for _, name := range []string{one, two} {
		all["Cluster "+name], all["ClusterLoadAssignment "+name] = "1", "1"
	}
	envoy.expect("at first", all)
	waitStored(t, relay, time.Time{})
	stopControlPlane()

	cp.set(endpointType, two, "2")
	all["ClusterLoadAssignment "+two] = "2"
	requested := len(cp.firstRequests())
	_, stopControlPlane = cp.upstream().listen(t, address, nil)
	for range 3 {
		r, err := envoy.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if n := len(r.Resources) + len(r.RemovedResources); (r.TypeUrl == endpointType) != (n == 1) || n > 1 {
			t.Errorf("received %[2]d resources of %[1]s", r.TypeUrl, n)
		}
		for _, one := range r.Resources {
			envoy.resources[shortType(r.TypeUrl)+" "+one.Name] = one.Version
		}
	}
	envoy.expect("after the control plane's return", all)
	for _, r := range cp.firstRequests()[requested:] {
		if r.TypeUrl != endpointType {
			continue
		}
		slices.Sort(r.ResourceNamesSubscribe)
		if !slices.Equal(r.ResourceNamesSubscribe, []string{one, two}) || r.InitialResourceVersions[one] != "1" || len(r.InitialResourceVersions) != 2 {
			t.Errorf("%d names are requested, %d known", len(r.ResourceNamesSubscribe), len(r.InitialResourceVersions))
		}
	}
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	envoy = newFakeEnvoy(t, relay)
	envoy.requestAll(one, two)
	all["ClusterLoadAssignment "+two] = "1" // the newer version was not accepted
	envoy.expect("without a control plane", all)
}
