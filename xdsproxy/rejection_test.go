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
)

func TestResourcesThatAReasonMeans(t *testing.T) {
	const a, b = "outbound|80||a.default.svc.cluster.local", "outbound|80||b.default.svc.cluster.local"
	both := []resource{{name: "outbound|80||b.default.svc"}, {name: b}, {name: a}}
	for _, c := range []struct {
		name      string
		resources []resource
		reason    string
		want      map[string]string
	}{
		{"one of many", both, "Error adding/updating cluster(s) " + a + ": no type", map[string]string{a: "no type"}},
		{"two, in their order", both, "Error adding/updating cluster(s) " + a + ": no type, " + b + ": bad, and worse",
			map[string]string{a: "no type", b: "bad, and worse"}},
		{"listeners", []resource{{name: "0.0.0.0_80"}, {name: "0.0.0.0_8080"}},
			"Error adding/updating listener(s) 0.0.0.0_8080: cannot bind\n", map[string]string{"0.0.0.0_8080": "cannot bind"}},
		{"the only one", []resource{{name: a}}, "Only unique names for routes are permitted", map[string]string{a: "Only unique names for routes are permitted"}},
		{"nobody knows", both, "Proto constraint validation failed", map[string]string{}},
		{"no name", []resource{{}, {}}, "x", map[string]string{}},
	} {
		got := map[string]string{}
		for _, m := range mentioned(c.resources, c.reason) {
			got[m.name] = m.reason
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// The log of a proxy on which somebody insists stays readable, and tells how often it was.
func TestRejectionsThatComeAgainAndAgainAreLoggedNowAndThen(t *testing.T) {
	now := time.Unix(1000, 0)
	var text strings.Builder
	l := newLedger(func() time.Time { return now }, slog.New(slog.NewTextHandler(&text, nil)))
	reject := func(typeURL, reason string) {
		now = now.Add(time.Millisecond)
		l.request(delta, request{typeURL: typeURL, nonce: "1", rejected: true, reason: reason}, response{})
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
	if n := lines("reason=\"new "); n != mostLogged-1 || lines("notLogged=999") != 1 {
		t.Errorf("%d of 100 other reasons:\n%s", n, text.String())
	}
	now = now.Add(loggedAgain)
	reject(clusterType, "same")
	if lines("reason=same notLogged=91") != 1 {
		t.Errorf("a minute later:\n%s", text.String())
	}
}

func TestCountersOfATypeAreThereBeforeItsFirstRejection(t *testing.T) {
	l := newLedger(time.Now, slog.New(slog.DiscardHandler))
	registry := prometheus.NewRegistry()
	if err := l.metrics.register(registry, l); err != nil {
		t.Fatal(err)
	}
	l.request(delta, request{typeURL: clusterType}, response{})
	if n, err := testutil.GatherAndCount(registry, "pilotfish_xds_nacks_total", "pilotfish_xds_acks_total"); n != 2 || err != nil {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestRejectionsAreBookedByResourceUntilSomethingBetterComes(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLedger(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	registry := prometheus.NewRegistry()
	if err := l.metrics.register(registry, l); err != nil {
		t.Fatal(err)
	}
	sent := func(nonce string, resources ...resource) response {
		r := response{typeURL: clusterType, nonce: nonce, resources: resources}
		l.response(r, 10)
		return r
	}
	answer := func(about response, reason string) {
		now = now.Add(time.Second)
		l.request(delta, request{typeURL: clusterType, nonce: about.nonce, rejected: reason != "", reason: reason}, about)
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
		text := fmt.Sprintf("# HELP pilotfish_xds_rejected_resources Resources that Envoy rejects at the moment, as far as it names them, by type.\n"+
			"# TYPE pilotfish_xds_rejected_resources gauge\npilotfish_xds_rejected_resources{type=\"Cluster\"} %d\n", len(names))
		if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "pilotfish_xds_rejected_resources"); err != nil {
			t.Error(err)
		}
	}
	answer(sent("1", resource{"a", "1"}, resource{"b", "1"}, resource{"c", "1"}), "Error adding/updating cluster(s) a: odd, b: bad")
	want("a 1 x1: odd", "b 1 x1: bad")
	answer(sent("2", resource{"b", "2"}, resource{"c", "2"}), "Error adding/updating cluster(s) b: worse")
	want("a 1 x1: odd", "b 2 x2: worse")
	answer(sent("3", resource{"b", "3"}), "")
	want("a 1 x1: odd")
	gone := response{typeURL: clusterType, nonce: "4", removed: []string{"a"}}
	l.response(gone, 10)
	answer(gone, "")
	want()

	nacks := l.history().Nacks
	if len(nacks) != 2 || !cmp.Equal(nacks[0].Names, []string{"a", "b"}) || nacks[1].Reason == "" || nacks[1].Time.Before(nacks[0].Time) {
		t.Errorf("history of rejections %+v", nacks)
	}
}

func TestHistoryIsBoundedAndKeepsRejections(t *testing.T) {
	l := newLedger(time.Now, slog.New(slog.DiscardHandler))
	one := response{typeURL: clusterType, nonce: "first", resources: []resource{{name: "a"}}}
	l.response(one, 10)
	l.request(sotw, request{typeURL: clusterType, nonce: "first", rejected: true, reason: "no"}, one)
	for i := range 3 * mostEvents {
		r := response{typeURL: endpointTypeForTest, nonce: fmt.Sprint(i)}
		l.response(r, 10)
	}
	h := l.history()
	if len(h.Events) != mostEvents || h.Events[0].Nonce != fmt.Sprint(2*mostEvents) || h.Events[mostEvents-1].Nonce != fmt.Sprint(3*mostEvents-1) {
		t.Errorf("%d events, from %s to %s", len(h.Events), h.Events[0].Nonce, h.Events[len(h.Events)-1].Nonce)
	}
	if len(h.Nacks) != 1 || h.Nacks[0].Reason != "no" {
		t.Errorf("rejections %+v", h.Nacks)
	}
}

const endpointTypeForTest = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

func TestRejectedResourceIsInStatusAndHistoryOfARelay(t *testing.T) {
	address, _ := answering([]byte("\n\x07cluster")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	r := receive(t, stream)
	send(t, stream, &discoveryv3.DiscoveryRequest{
		TypeUrl: clusterURL, ResponseNonce: r.Nonce, ErrorDetail: &rpcstatus.Status{Message: "it is odd"},
	})
	testenv.Eventually(t, "the rejection is booked", func() error {
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

func TestOnlyWhatEnvoyFindsFaultWithIsBlamed(t *testing.T) {
	const reason = "Error adding/updating cluster(s) outbound|80||ab.c: unknown field, b: needs a and d, e\n0.0.0.0_80: why\n"
	for name, blamed := range map[string]bool{
		"outbound|80||ab.c": true, "b": true, "0.0.0.0_80": true,
		"a": false, "ab.c": false, "c": false, "d": false, "e": false, "0.0.0.0": false, "80": false, "": false,
	} {
		if got := isBlamed(reason, name); got != blamed {
			t.Errorf("%q is blamed: %v, want %v", name, got, blamed)
		}
	}
}
