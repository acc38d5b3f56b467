package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"
)

// countRefusedNames returns the server's counter of refused names.
func (r *testServer) countRefusedNames(typeURL string) float64 {
	return testutil.ToFloat64(r.metrics.namesRefused.WithLabelValues(shortType(typeURL)))
}

func acceptAnyName(string) bool { return true }

func TestOnlyTooLongNamesAreNotSubscribed(t *testing.T) {
	long := strings.Repeat("x", maxName+1)
	r := newTestServer(t, Config{Registerer: prometheus.NewRegistry()})
	r.push(meshState{eds: {"a": "1", long: "1"}, rds: {"a": "1", long: "1"}})
	c := r.newDeltaClient()
	c.subscribe(eds, long, "a")
	c.expect("eds +a=1")
	c.expectNothing()
	s := r.newSotwClient(t)
	s.request(rds, long, "a")
	if got := s.next(); len(got.GetResources()) != 1 {
		t.Errorf("a state-of-the-world client receives %d resources", len(got.GetResources()))
	}
	for _, client := range r.Clients() {
		for _, served := range client.Types {
			if !slices.Equal(served.Names, []string{"a"}) {
				t.Errorf("the client is subscribed to %d names of type %s", len(served.Names), served.TypeURL)
			}
		}
	}
	if n := r.countRefusedNames(eds) + r.countRefusedNames(rds); n != 2 {
		t.Errorf("the metric counts %v refused names", n)
	}
}

func TestUnsubscribedNamesFreeSpaceWithinTheLimit(t *testing.T) {
	s := newSubscription(eds, &pageCache{})
	limit := func(r *request) (excess int) {
		over, _ := s.limitNames(r, maxNames, acceptAnyName)
		excess = len(over)
		s.subscribeDelta(r, false)
		return excess
	}
	batch := func(n int) []string {
		names := make([]string, 4000)
		for i := range names {
			names[i] = fmt.Sprintf("%d-%d-%s", n, i, strings.Repeat("x", 1000))
		}
		return names
	}
	excess := 0
	for n := range 10 {
		excess += limit(&request{subscribe: batch(n)})
	}
	if n := s.names.len(); n+excess != 40_000 || s.names.bytes > maxNames || s.names.bytes < maxNames-1100 {
		t.Errorf("the client is subscribed to %d names of %d bytes, want %d", n, s.names.bytes, excess)
	}
	if excess := limit(&request{subscribe: batch(0)}); excess != 0 {
		t.Errorf("%d names exceed the limit", excess)
	}
	limit(&request{unsubscribe: batch(0)})
	if excess := limit(&request{subscribe: batch(11)[:3900]}); excess != 0 {
		t.Errorf("%d names are refused although other names were removed", excess)
	}
}

func TestRequestForTooLongVirtualHostIsAnswered(t *testing.T) {
	_, _, c := newOnDemandServer(t)
	long := "r/" + strings.Repeat("x", maxName)
	c.subscribe(VirtualHostType, long)
	c.expect("vhds +" + long + "=(" + long + ")")
	c.subscribe(VirtualHostType, long, "r/A")
	c.expect("vhds +r/a=1(r/A)")
	c.expect("vhds +" + long + "=(" + long + ")")
}

func TestUnservedTypesAreNotStored(t *testing.T) {
	r := newTestServer(t, Config{})
	r.push(meshState{cds: {"c": "1"}})
	c := r.newDeltaClient()
	for n := range 100 {
		c.resume(fmt.Sprint("type.googleapis.com/test.Type", n), []string{"a"}, map[string]string{"b": "1"})
		c.expect(fmt.Sprintf("Type%d -a -b", n))
	}
	c.subscribe(cds)
	c.expect("cds +c=1")
	if st := r.awaitStatus("the client", func(ClientStatus) bool { return true }); len(st.Types) != 1 {
		t.Errorf("the client is subscribed to %d types", len(st.Types))
	}
}

func TestTooLargeNodeIsRefusedWithTheLimit(t *testing.T) {
	r := newTestServer(t, Config{})
	r.push(meshState{})
	c := r.newDeltaClient()
	c.first = false
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, Node: &corev3.Node{Id: "n", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
		"LABELS": structpb.NewStringValue(strings.Repeat("x", maxNode)),
	}}}})
	err := c.awaitEnd()
	wantCode(t, err, codes.InvalidArgument)
	if !strings.Contains(err.Error(), "at most 1048576") {
		t.Error(err)
	}
}

func TestTooManyClaimsAreRefusedWithTheLimit(t *testing.T) {
	r := request{typeURL: cds, initial: map[string]string{}}
	for n := range 10 {
		r.initial[fmt.Sprint(n)] = strings.Repeat("x", maxNames/10-nameCost-1)
	}
	if err := checkClaims(&r, maxNames); err != nil {
		t.Fatal(err)
	}
	r.initial["one more"] = ""
	err := checkClaims(&r, maxNames)
	wantCode(t, err, codes.ResourceExhausted)
	if !strings.Contains(err.Error(), fmt.Sprint("limit of ", maxNames)) {
		t.Error(err)
	}
}

func TestDeferredRequestsAreLimited(t *testing.T) {
	r := newTestServer(t, Config{Settle: time.Hour}) // the time is longer than the test
	r.push(meshState{rds: {"r": "1"}})
	c := r.newDeltaClient()
	for n := range maxDeferred {
		c.resume(rds, []string{fmt.Sprint("r", n)}, map[string]string{"r": "0"})
	}
	c.subscribe(rds, "r")
	c.expect("rds +r=1")
}

func TestOutstandingResponsesAreLimited(t *testing.T) {
	s := newSubscription(eds, &pageCache{})
	names := make([]string, maxOutstandingNames/4)
	for n := range 10 {
		s.record(&response{nonce: fmt.Sprint(n), removed: names}, false)
	}
	if n := len(s.outstanding); n != 4 || s.outstanding[3].nonce != "9" {
		t.Errorf("the server stores %d responses without an ACK", n)
	}
	s.record(&response{nonce: "10", removed: make([]string, 2*maxOutstandingNames)}, false)
	if n := len(s.outstanding); n != 1 || s.outstanding[0].nonce != "10" {
		t.Errorf("%d responses are stored before a large one", n-1)
	}
	for n := range 2 * maxOutstanding {
		s.record(&response{nonce: fmt.Sprint("x", n)}, false)
	}
	if n := len(s.outstanding); n != maxOutstanding {
		t.Errorf("of small responses the server stores %d", n)
	}
}
