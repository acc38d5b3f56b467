package xds

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
)

// newBlockedClient returns a delta stream that does not read, so that its flow-control window soon is full.
func (r *testServer) newBlockedClient(t *testing.T) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(r.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "slow"}, TypeUrl: lds})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func newLargeState(n int) meshState {
	return meshState{lds: {"l": fmt.Sprintf("%d ", n) + strings.Repeat("x", 300_000)}}
}

func TestPushesMergeWhileAClientIsSlow(t *testing.T) {
	r := newTestServer(t, Config{})
	r.push(newLargeState(0))
	slow := r.newBlockedClient(t)
	r.awaitStatus("the slow client", func(s ClientStatus) bool { return len(s.Types) == 1 })
	const changes = 300
	for i := 1; i <= changes; i++ {
		r.push(newLargeState(i), lds)
	}
	for received := 1; ; received++ {
		m, err := slow.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(m.GetResources()[0].GetResource().GetValue()), fmt.Sprintf("%d ", changes)) {
			if received > changes/10 {
				t.Fatalf("the server sent %d responses for %d changes to a client that does not read", received, changes)
			}
			return
		}
	}
}

func TestSlowClientDoesNotDelayOtherClients(t *testing.T) {
	r := newTestServer(t, Config{Generators: 1})
	r.push(newLargeState(0))
	r.newBlockedClient(t)
	quick := r.newDeltaClient()
	quick.subscribe(lds)
	quick.ack(quick.next())
	for i := 1; i < 20; i++ {
		r.push(newLargeState(i), lds)
		m := quick.next()
		if !strings.HasPrefix(string(m.GetResources()[0].GetResource().GetValue()), fmt.Sprintf("%d ", i)) {
			t.Fatalf("the fast client did not receive change %d", i)
		}
		quick.ack(m)
	}
}

func TestClientThatDoesNotReadIsDisconnected(t *testing.T) {
	r := newTestServer(t, Config{SendTimeout: 50 * time.Millisecond})
	r.push(newLargeState(0))
	slow := r.newBlockedClient(t)
	for i := 1; ; i++ {
		r.push(newLargeState(i), lds)
		if i > 3 && len(r.Clients()) == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for {
		if _, err := slow.Recv(); err != nil {
			wantCode(t, err, codes.DeadlineExceeded)
			return
		}
	}
}

func TestResponsesShareTheMarshalledResource(t *testing.T) {
	r, err := NewResource("n", &corev3.Node{Id: "some message"})
	if err != nil {
		t.Fatal(err)
	}
	first, second := r.deltaBuffer().ReadOnlyData(), r.deltaBuffer().ReadOnlyData()
	if &first[0] != &second[0] {
		t.Fatal("the server marshals the resource again for each response")
	}
	if &first[len(first)-1] != &r.Body.Value[len(r.Body.Value)-1] {
		t.Fatal("the encoded resource is in memory twice")
	}
	renamed := *r
	renamed.Name = "other"
	if !bytes.Contains(renamed.deltaBuffer().ReadOnlyData(), []byte("other")) {
		t.Fatal("a copy with another name is sent with the old name")
	}
}

func TestResourcesReturnsWhatAClientShouldHave(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	st := r.awaitStatus("the client", func(s ClientStatus) bool { return len(s.Types) == 2 })
	for _, id := range []string{st.ID, st.Node} {
		got, err := r.Resources(t.Context(), id)
		if err != nil || len(got[cds]) != 2 || len(got[eds]) != 1 {
			t.Fatalf("resources of %s are %v, %v", id, got, err)
		}
	}
	if _, err := r.Resources(t.Context(), "unknown"); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Fatalf("the error is %v", err)
	}
}

// clientModel is a client that behaves like Envoy: it applies responses, and retains its resources across a reconnect.
type clientModel struct {
	has map[string]map[string]string
	*deltaClient
}

func (m *clientModel) connect(r *testServer) {
	m.deltaClient = r.newDeltaClient()
	for _, typeURL := range independentTypes {
		var names []string
		if !impliesWildcard(typeURL) {
			names = modelNames
		}
		m.resume(typeURL, names, m.has[typeURL])
	}
}

// emptyResources returns the resources of a new client.
func emptyResources() map[string]map[string]string {
	has := map[string]map[string]string{}
	for _, typeURL := range independentTypes {
		has[typeURL] = map[string]string{}
	}
	return has
}

var modelNames = []string{"n0", "n1", "n2", "n3", "n4", "n5"}

// apply processes a response. It rejects a response with a bad resource as a whole.
func (m *clientModel) apply(resp *discoveryv3.DeltaDiscoveryResponse) {
	for _, res := range resp.GetResources() {
		if strings.HasSuffix(res.GetVersion(), "bad") {
			m.nack(resp, res.GetName()+" is bad")
			return
		}
	}
	for _, res := range resp.GetResources() {
		m.has[resp.GetTypeUrl()][res.GetName()] = res.GetVersion()
	}
	for _, name := range resp.GetRemovedResources() {
		delete(m.has[resp.GetTypeUrl()], name)
	}
	m.ack(resp)
}

// describeMissing returns the first difference between the model and the state, or "".
func (m *clientModel) describeMissing(w meshState) string {
	for _, typeURL := range independentTypes {
		for name, content := range w[typeURL] {
			if m.has[typeURL][name] != content {
				return fmt.Sprintf("%s %s is %q, want %q", ShortType(typeURL), name, m.has[typeURL][name], content)
			}
		}
		for name := range m.has[typeURL] {
			if _, ok := w[typeURL][name]; !ok {
				return fmt.Sprintf("%s %s is not removed", ShortType(typeURL), name)
			}
		}
	}
	return ""
}

// converge applies responses until the model has the state. The server sends resources that were rejected together with
// an invalid one only with a later change, so converge pushes several times.
func (m *clientModel) converge(t *testing.T, r *testServer, w meshState) {
	t.Helper()
	for range 10 {
		r.push(w, independentTypes...)
		for _, resp := range m.receivePush(r) {
			m.apply(resp)
		}
		r.awaitStatus("all answers", func(s ClientStatus) bool {
			select {
			case resp := <-m.got:
				m.apply(resp)
			default:
			}
			return countUnanswered(s) == 0
		})
		if m.describeMissing(w) == "" {
			r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
			return
		}
	}
	t.Fatalf("the client does not reach the pushed state: %s", m.describeMissing(w))
}

func countUnanswered(s ClientStatus) (n int) {
	for _, ts := range s.Types {
		n += ts.Unanswered + ts.Removing
	}
	return n
}

func randomChange(rng *rand.Rand, w meshState) (meshState, []string) {
	var types []string
	for range 1 + rng.IntN(4) {
		typeURL, name := independentTypes[rng.IntN(len(independentTypes))], modelNames[rng.IntN(len(modelNames))]
		types = append(types, typeURL)
		switch rng.IntN(4) {
		case 0:
			w = w.withoutResource(typeURL, name)
		case 1:
			w = w.withResource(typeURL, name, fmt.Sprintf("%d bad", rng.Uint32()))
		default:
			w = w.withResource(typeURL, name, fmt.Sprintf("eds%d", rng.Uint32()))
		}
	}
	return w, types
}

// withoutBadResources replaces the contents that clients reject.
func withoutBadResources(w meshState) meshState {
	for typeURL, resources := range w {
		for name, content := range resources {
			if strings.HasSuffix(content, "bad") {
				w = w.withResource(typeURL, name, strings.TrimSuffix(content, " bad"))
			}
		}
	}
	return w
}

func checkConvergence(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newTestServer(t, Config{Settle: 5 * time.Millisecond})
	w := meshState{}
	r.push(w)
	m := &clientModel{has: emptyResources()}
	m.connect(r)
	for range 40 {
		var types []string
		for range rng.IntN(3) {
			w, types = randomChange(rng, w)
			r.push(w, types...)
		}
		for range rng.IntN(4) {
			select {
			case resp := <-m.got:
				m.apply(resp)
			case <-time.After(time.Duration(rng.IntN(2)) * time.Millisecond):
			}
		}
		if rng.IntN(6) == 0 {
			m.cancel()
			_ = m.awaitEnd()
			m.connect(r)
		}
	}
	m.converge(t, r, withoutBadResources(w))
}

func TestDeltaClientConvergesAfterRandomEvents(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkConvergence(t, seed) })
	}
}

func FuzzClientConverges(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(checkConvergence)
}
