package xdsproxy

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

func TestFindMentions(t *testing.T) {
	const a, b = "outbound|80||a.default.svc.cluster.local", "outbound|80||b.default.svc.cluster.local"
	both := []wire.Resource{{Name: "outbound|80||b.default.svc"}, {Name: b}, {Name: a}}
	for _, c := range []struct {
		name      string
		resources []wire.Resource
		reason    string
		want      map[string]string
	}{
		{"one of many", both, "Error adding/updating cluster(s) " + a + ": no type", map[string]string{a: "no type"}},
		{"two, in their order", both, "Error adding/updating cluster(s) " + a + ": no type, " + b + ": bad, and worse",
			map[string]string{a: "no type", b: "bad, and worse"}},
		{"listeners", []wire.Resource{{Name: "0.0.0.0_80"}, {Name: "0.0.0.0_8080"}},
			"Error adding/updating listener(s) 0.0.0.0_8080: cannot bind\n", map[string]string{"0.0.0.0_8080": "cannot bind"}},
		{"the only one", []wire.Resource{{Name: a}}, "Only unique names for routes are permitted", map[string]string{a: "Only unique names for routes are permitted"}},
		{"no resource named", both, "Proto constraint validation failed", map[string]string{}},
		{"no name", []wire.Resource{{}, {}}, "x", map[string]string{}},
	} {
		got := map[string]string{}
		for _, m := range findMentions(c.resources, c.reason) {
			got[m.Name] = m.reason
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestRecordedNackIsUpdatedAtTheLimit(t *testing.T) {
	var a typeTracker
	var first wire.Response
	reason := "Error adding/updating cluster(s) "
	for i := range maxRejected {
		name := fmt.Sprintf("c%03d", i)
		first.Resources = append(first.Resources, wire.Resource{Name: name, Version: "1"})
		reason += name + ": old, "
	}
	start := time.Unix(1000, 0)
	a.rejectResources(first, reason, start)
	later := start.Add(time.Minute)
	again := wire.Response{Resources: []wire.Resource{{Name: "another", Version: "2"}, {Name: "c007", Version: "2"}}}
	a.rejectResources(again, "Error adding/updating cluster(s) another: bad, c007: new", later)

	all := a.rejectedResources()
	if len(all) != maxRejected {
		t.Errorf("%d resources are recorded, want %d", len(all), maxRejected)
	}
	want := ResourceNack{Name: "c007", Version: "2", Reason: "new", Count: 2, Since: start, Last: later}
	if diff := cmp.Diff(want, all[7]); diff != "" {
		t.Errorf("the recorded NACK (-want +got):\n%s", diff)
	}
}

// If a control plane repeats a rejected response, the log stays short and contains the number of NACKs.
func TestRepeatedNacksAreLoggedRarely(t *testing.T) {
	now := time.Unix(1000, 0)
	var text strings.Builder
	l := newStatusTracker(func() time.Time { return now }, slog.New(slog.NewTextHandler(&text, nil)))
	reject := func(typeURL, reason string) {
		now = now.Add(time.Millisecond)
		l.recordRequest(wire.Delta, wire.Request{TypeURL: typeURL, Nonce: "1", Rejected: true, Reason: reason}, wire.Response{})
	}
	lines := func(part string) int { return strings.Count(text.String(), part) }
	for range 1000 {
		reject(clusterType, "same")
		reject(listenerType, "other")
	}
	if lines("reason=same") != 1 || lines("reason=other") != 1 || lines("notLogged") != 0 {
		t.Errorf("the log of 1,000 equal rejections of two types:\n%s", text.String())
	}
	for i := range 100 {
		reject(clusterType, fmt.Sprintf("new %d", i))
	}
	if n := lines("reason=\"new "); n != maxLoggedNacks-1 || lines("notLogged=999") != 1 {
		t.Errorf("%d of 100 NACKs with other reasons are logged:\n%s", n, text.String())
	}
	now = now.Add(nackLogInterval)
	reject(clusterType, "same")
	if lines("reason=same notLogged=91") != 1 {
		t.Errorf("a minute later:\n%s", text.String())
	}
}

func TestNackCountersExistBeforeFirstNack(t *testing.T) {
	l := newStatusTracker(time.Now, slog.New(slog.DiscardHandler))
	registry := prometheus.NewRegistry()
	if err := l.metrics.register(registry, l); err != nil {
		t.Fatal(err)
	}
	l.recordRequest(wire.Delta, wire.Request{TypeURL: clusterType}, wire.Response{})
	if n, err := testutil.GatherAndCount(registry, "pilotfish_xds_nacks_total", "pilotfish_xds_acks_total"); n != 2 || err != nil {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestNackIsRecordedUntilResourceIsAccepted(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newStatusTracker(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	registry := prometheus.NewRegistry()
	if err := l.metrics.register(registry, l); err != nil {
		t.Fatal(err)
	}
	sent := func(nonce string, resources ...wire.Resource) wire.Response {
		r := wire.Response{TypeURL: clusterType, Nonce: nonce, Resources: resources}
		l.recordResponse(r, 10)
		return r
	}
	answer := func(about wire.Response, reason string) {
		now = now.Add(time.Second)
		l.recordRequest(wire.Delta, wire.Request{TypeURL: clusterType, Nonce: about.Nonce, Rejected: reason != "", Reason: reason}, about)
	}
	rejected := func() (names []string) {
		for _, r := range l.status().Types[0].Rejected {
			names = append(names, fmt.Sprintf("%s %s x%d: %s", r.Name, r.Version, r.Count, r.Reason))
		}
		return names
	}
	want := func(names ...string) {
		t.Helper()
		if diff := cmp.Diff(names, rejected()); diff != "" {
			t.Error(diff)
		}
		text := fmt.Sprintf("# HELP pilotfish_xds_rejected_resources Resources that Envoy currently rejects and names in its NACKs, by type.\n"+
			"# TYPE pilotfish_xds_rejected_resources gauge\npilotfish_xds_rejected_resources{type=\"Cluster\"} %d\n", len(names))
		if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "pilotfish_xds_rejected_resources"); err != nil {
			t.Error(err)
		}
	}
	answer(sent("1", wire.Resource{Name: "a", Version: "1"}, wire.Resource{Name: "b", Version: "1"}, wire.Resource{Name: "c", Version: "1"}), "Error adding/updating cluster(s) a: odd, b: bad")
	want("a 1 x1: odd", "b 1 x1: bad")
	answer(sent("2", wire.Resource{Name: "b", Version: "2"}, wire.Resource{Name: "c", Version: "2"}), "Error adding/updating cluster(s) b: worse")
	want("a 1 x1: odd", "b 2 x2: worse")
	answer(sent("3", wire.Resource{Name: "b", Version: "3"}), "")
	want("a 1 x1: odd")
	gone := wire.Response{TypeURL: clusterType, Nonce: "4", Removed: []string{"a"}}
	l.recordResponse(gone, 10)
	answer(gone, "")
	want()

	nacks := l.history().Nacks
	if len(nacks) != 2 || !cmp.Equal(nacks[0].Names, []string{"a", "b"}) || nacks[1].Reason == "" || nacks[1].Time.Before(nacks[0].Time) {
		t.Errorf("history of rejections %+v", nacks)
	}
}

func TestHistoryIsLimitedAndRetainsNacks(t *testing.T) {
	l := newStatusTracker(time.Now, slog.New(slog.DiscardHandler))
	one := wire.Response{TypeURL: clusterType, Nonce: "first", Resources: []wire.Resource{{Name: "a"}}}
	l.recordResponse(one, 10)
	l.recordRequest(wire.SotW, wire.Request{TypeURL: clusterType, Nonce: "first", Rejected: true, Reason: "no"}, one)
	for i := range 3 * maxEvents {
		r := wire.Response{TypeURL: endpointTypeForTest, Nonce: fmt.Sprint(i)}
		l.recordResponse(r, 10)
	}
	h := l.history()
	if len(h.Events) != maxEvents || h.Events[0].Nonce != fmt.Sprint(2*maxEvents) || h.Events[maxEvents-1].Nonce != fmt.Sprint(3*maxEvents-1) {
		t.Errorf("%d events, from %s to %s", len(h.Events), h.Events[0].Nonce, h.Events[len(h.Events)-1].Nonce)
	}
	if len(h.Nacks) != 1 || h.Nacks[0].Reason != "no" {
		t.Errorf("rejections %+v", h.Nacks)
	}
}

const endpointTypeForTest = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

func TestRejectedResourceIsInStatusAndHistory(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("\n\x07cluster")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	r := receive(t, stream)
	send(t, stream, &discoveryv3.DiscoveryRequest{
		TypeUrl: clusterURL, ResponseNonce: r.Nonce, ErrorDetail: &rpcstatus.Status{Message: "it is odd"},
	})
	testenv.Eventually(t, "the status contains the rejection", func() error {
		s := typeStatus(relay, clusterURL)
		if len(s.Rejected) != 1 || s.Rejected[0].Name != "cluster" || s.Rejected[0].Reason != "it is odd" || s.Rejected[0].Version != "v1" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	var kinds []string
	for _, e := range relay.History().Events {
		kinds = append(kinds, e.Kind)
	}
	if want := []string{EventEnvoy, EventSubscribe, EventConnected, EventResponse, EventNack}; !containsInOrder(kinds, want) {
		t.Errorf("history %v, want %v in it", kinds, want)
	}
}

func containsInOrder(all, want []string) bool {
	for _, s := range all {
		if len(want) > 0 && s == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

func TestHasReasonForRequiresReason(t *testing.T) {
	const reason = "Error adding/updating cluster(s) outbound|80||ab.c: unknown field, b: needs a and d, e\n0.0.0.0_80: why\n"
	for name, blamed := range map[string]bool{
		"outbound|80||ab.c": true, "b": true, "0.0.0.0_80": true,
		"a": false, "ab.c": false, "c": false, "d": false, "e": false, "0.0.0.0": false, "80": false, "": false,
	} {
		if got := hasReasonFor(reason, name); got != blamed {
			t.Errorf("hasReasonFor(%q) = %v, want %v", name, got, blamed)
		}
	}
}
