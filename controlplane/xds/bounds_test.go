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

// refusedNames is what the server counts.
func (r *rig) refusedNames(typeURL string) float64 {
	return testutil.ToFloat64(r.metrics.namesRefused.WithLabelValues(shortType(typeURL)))
}

func TestNamesThatAreTooLongAreNotSubscribedToAndTheOthersAre(t *testing.T) {
	long := strings.Repeat("x", maxName+1)
	r := newRig(t, Config{Registerer: prometheus.NewRegistry()})
	r.push(world{eds: {"a": "1", long: "1"}, rds: {"a": "1", long: "1"}})
	c := r.delta()
	c.subscribe(eds, long, "a")
	c.expect("eds +a=1")
	c.silence()
	s := r.sotw(t)
	s.want(rds, long, "a")
	if got := s.next(); len(got.GetResources()) != 1 {
		t.Errorf("a state-of-the-world client is sent %d resources", len(got.GetResources()))
	}
	for _, client := range r.Clients() {
		for _, served := range client.Types {
			if !slices.Equal(served.Names, []string{"a"}) {
				t.Errorf("it is subscribed to %d names of %s", len(served.Names), served.TypeURL)
			}
		}
	}
	if n := r.refusedNames(eds) + r.refusedNames(rds); n != 2 {
		t.Errorf("%v names are counted", n)
	}
}

func TestNamesOfAStreamAreBoundedAndMakeRoomWhenTheyAreDropped(t *testing.T) {
	s := newSubscription(eds, &pages{})
	ask := func(r *request) (excess int) {
		excess = len(s.bound(r))
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
		excess += ask(&request{subscribe: batch(n)})
	}
	if n := s.names.len(); n+excess != 40_000 || s.names.bytes > maxNames || s.names.bytes < maxNames-1100 {
		t.Errorf("it is subscribed to %d names of %d bytes, and not to %d", n, s.names.bytes, excess)
	}
	if excess := ask(&request{subscribe: batch(0)}); excess != 0 {
		t.Errorf("%d of those that it is subscribed to are too many", excess)
	}
	ask(&request{unsubscribe: batch(0)})
	if excess := ask(&request{subscribe: batch(11)[:3900]}); excess != 0 {
		t.Errorf("%d are too many for the room of others", excess)
	}
}

func TestRequestForAVirtualHostWithATooLongNameIsAnswered(t *testing.T) {
	_, _, c := askedRig(t)
	long := "r/" + strings.Repeat("x", maxName)
	c.subscribe(VirtualHostType, long)
	c.expect("vhds +" + long + "=(" + long + ")")
	c.subscribe(VirtualHostType, long, "r/A")
	c.expect("vhds +r/a=1(r/A)")
	c.expect("vhds +" + long + "=(" + long + ")")
}

func TestNothingIsKeptOfTypesThatAreNotServed(t *testing.T) {
	r := newRig(t, Config{})
	r.push(world{cds: {"c": "1"}})
	c := r.delta()
	for n := range 100 {
		c.resume(fmt.Sprint("type.googleapis.com/test.Type", n), []string{"a"}, map[string]string{"b": "1"})
		c.expect(fmt.Sprintf("Type%d -a -b", n))
	}
	c.subscribe(cds)
	c.expect("cds +c=1")
	if st := r.only("the client", func(ClientStatus) bool { return true }); len(st.Types) != 1 {
		t.Errorf("it is subscribed to %d types", len(st.Types))
	}
}

func TestNodeThatIsTooLargeIsRefusedWithTheLimit(t *testing.T) {
	r := newRig(t, Config{})
	r.push(world{})
	c := r.delta()
	c.first = false
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, Node: &corev3.Node{Id: "n", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
		"LABELS": structpb.NewStringValue(strings.Repeat("x", maxNode)),
	}}}})
	err := c.end()
	wantCode(t, err, codes.InvalidArgument)
	if !strings.Contains(err.Error(), "may have 1048576") {
		t.Error(err)
	}
}

func TestClientThatComesWithTooMuchIsRefusedWithTheLimit(t *testing.T) {
	r := request{typeURL: cds, initial: map[string]string{}}
	for n := range 10 {
		r.initial[fmt.Sprint(n)] = strings.Repeat("x", maxNames/10-nameCost-1)
	}
	if err := checkClaims(&r); err != nil {
		t.Fatal(err)
	}
	r.initial["one more"] = ""
	err := checkClaims(&r)
	wantCode(t, err, codes.ResourceExhausted)
	if !strings.Contains(err.Error(), fmt.Sprint("may take ", maxNames)) {
		t.Error(err)
	}
}

func TestRequestsThatWaitForOthersAreBounded(t *testing.T) {
	r := newRig(t, Config{Settle: time.Hour}) // for as long they would wait
	r.push(world{rds: {"r": "1"}})
	c := r.delta()
	for n := range maxDeferred {
		c.resume(rds, []string{fmt.Sprint("r", n)}, map[string]string{"r": "0"})
	}
	c.subscribe(rds, "r")
	c.expect("rds +r=1")
}

func TestWhatIsRememberedOfUnansweredResponsesIsBounded(t *testing.T) {
	s := newSubscription(eds, &pages{})
	names := make([]string, maxOutstandingNames/4)
	for n := range 10 {
		s.record(&response{nonce: fmt.Sprint(n), removed: names}, false)
	}
	if n := len(s.outstanding); n != 4 || s.outstanding[3].nonce != "9" {
		t.Errorf("%d responses are remembered", n)
	}
	s.record(&response{nonce: "10", removed: make([]string, 2*maxOutstandingNames)}, false)
	if n := len(s.outstanding); n != 1 || s.outstanding[0].nonce != "10" {
		t.Errorf("beside a large one %d are remembered", n-1)
	}
	for n := range 2 * maxOutstanding {
		s.record(&response{nonce: fmt.Sprint("x", n)}, false)
	}
	if n := len(s.outstanding); n != maxOutstanding {
		t.Errorf("of small ones %d are remembered", n)
	}
}
