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

// blocked is a delta stream that reads nothing on its own, and whose flow-control window is soon full.
func (r *rig) blocked(t *testing.T) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
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

func bigWorld(n int) world {
	return world{lds: {"l": fmt.Sprintf("%d ", n) + strings.Repeat("x", 300_000)}}
}

func TestPushesMergeWhileAClientIsSlow(t *testing.T) {
	r := newRig(t, Config{})
	r.push(bigWorld(0))
	slow := r.blocked(t)
	r.only("the slow client", func(s ClientStatus) bool { return len(s.Types) == 1 })
	const changes = 300
	for i := 1; i <= changes; i++ {
		r.push(bigWorld(i), lds)
	}
	for received := 1; ; received++ {
		m, err := slow.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(m.GetResources()[0].GetResource().GetValue()), fmt.Sprintf("%d ", changes)) {
			if received > changes/10 {
				t.Fatalf("a client that reads nothing was sent %d responses for %d changes", received, changes)
			}
			return
		}
	}
}

func TestSlowClientHoldsUpNobody(t *testing.T) {
	r := newRig(t, Config{Generators: 1})
	r.push(bigWorld(0))
	r.blocked(t)
	quick := r.delta()
	quick.subscribe(lds)
	quick.ack(quick.next())
	for i := 1; i < 20; i++ {
		r.push(bigWorld(i), lds)
		m := quick.next()
		if !strings.HasPrefix(string(m.GetResources()[0].GetResource().GetValue()), fmt.Sprintf("%d ", i)) {
			t.Fatalf("the quick client misses change %d", i)
		}
		quick.ack(m)
	}
}

func TestClientThatReadsNothingLosesItsStream(t *testing.T) {
	r := newRig(t, Config{SendTimeout: 50 * time.Millisecond})
	r.push(bigWorld(0))
	slow := r.blocked(t)
	for i := 1; ; i++ {
		r.push(bigWorld(i), lds)
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
	first, second := r.framed().ReadOnlyData(), r.framed().ReadOnlyData()
	if &first[0] != &second[0] {
		t.Fatal("the resource is marshalled anew for each response")
	}
	if &first[len(first)-1] != &r.Body.Value[len(r.Body.Value)-1] {
		t.Fatal("the resource is in memory twice")
	}
	renamed := *r
	renamed.Name = "other"
	if !bytes.Contains(renamed.framed().ReadOnlyData(), []byte("other")) {
		t.Fatal("a copy under another name is sent under the old one")
	}
}

func TestResourcesOfAClientCanBeAskedFor(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	st := r.only("the client", func(s ClientStatus) bool { return len(s.Types) == 2 })
	for _, id := range []string{st.ID, st.Node} {
		got, err := r.Resources(t.Context(), id)
		if err != nil || len(got[cds]) != 2 || len(got[eds]) != 1 {
			t.Fatalf("resources of %s are %v, %v", id, got, err)
		}
	}
	if _, err := r.Resources(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Fatalf("error is %v", err)
	}
}

// model is a client that does as Envoy does: it applies responses, and keeps what it has over a reconnect.
type model struct {
	has map[string]map[string]string
	*deltaClient
}

func (m *model) connect(r *rig) {
	m.deltaClient = r.delta()
	for _, typeURL := range wholeTypes {
		var names []string
		if !impliesWildcard(typeURL) {
			names = modelNames
		}
		m.resume(typeURL, names, m.has[typeURL])
	}
}

// nothing is what a client has at first.
func nothing() map[string]map[string]string {
	has := map[string]map[string]string{}
	for _, typeURL := range wholeTypes {
		has[typeURL] = map[string]string{}
	}
	return has
}

var modelNames = []string{"n0", "n1", "n2", "n3", "n4", "n5"}

// apply takes in a response; now and then it refuses one that has a bad resource, and has none of it then.
func (m *model) apply(resp *discoveryv3.DeltaDiscoveryResponse) {
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

// lacks compares what the model has with the state.
func (m *model) lacks(w world) string {
	for _, typeURL := range wholeTypes {
		for name, content := range w[typeURL] {
			if m.has[typeURL][name] != content {
				return fmt.Sprintf("%s %s is %q, want %q", ShortType(typeURL), name, m.has[typeURL][name], content)
			}
		}
		for name := range m.has[typeURL] {
			if _, ok := w[typeURL][name]; !ok {
				return fmt.Sprintf("%s %s is still there", ShortType(typeURL), name)
			}
		}
	}
	return ""
}

// converge lets the model apply what comes until it has the state. What was refused together with a bad resource comes
// with a later change, so there are some.
func (m *model) converge(t *testing.T, r *rig, w world) {
	t.Helper()
	for range 10 {
		r.push(w, wholeTypes...)
		for _, resp := range m.batch(r) {
			m.apply(resp)
		}
		r.only("all answers", func(s ClientStatus) bool {
			select {
			case resp := <-m.got:
				m.apply(resp)
			default:
			}
			return unanswered(s) == 0
		})
		if m.lacks(w) == "" {
			r.only("in sync", func(s ClientStatus) bool { return s.InSync })
			return
		}
	}
	t.Fatalf("the client does not converge: %s", m.lacks(w))
}

func unanswered(s ClientStatus) (n int) {
	for _, ts := range s.Types {
		n += ts.Unanswered + ts.Removing
	}
	return n
}

func randomChange(rng *rand.Rand, w world) (world, []string) {
	var types []string
	for range 1 + rng.IntN(4) {
		typeURL, name := wholeTypes[rng.IntN(len(wholeTypes))], modelNames[rng.IntN(len(modelNames))]
		types = append(types, typeURL)
		switch rng.IntN(4) {
		case 0:
			w = w.without(typeURL, name)
		case 1:
			w = w.with(typeURL, name, fmt.Sprintf("%d bad", rng.Uint32()))
		default:
			w = w.with(typeURL, name, fmt.Sprintf("eds%d", rng.Uint32()))
		}
	}
	return w, types
}

// healed makes all that a client refuses acceptable.
func healed(w world) world {
	for typeURL, resources := range w {
		for name, content := range resources {
			if strings.HasSuffix(content, "bad") {
				w = w.with(typeURL, name, strings.TrimSuffix(content, " bad"))
			}
		}
	}
	return w
}

func checkConvergence(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, Config{Settle: 5 * time.Millisecond})
	w := world{}
	r.push(w)
	m := &model{has: nothing()}
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
			_ = m.end()
			m.connect(r)
		}
	}
	m.converge(t, r, healed(w))
}

func TestClientConvergesUnderRandomChangesReconnectsAndRejections(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkConvergence(t, seed) })
	}
}

func FuzzClientConverges(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(checkConvergence)
}
