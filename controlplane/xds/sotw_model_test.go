package xds

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// sotwModel is a client that behaves like Envoy: a response replaces all clusters or listeners, but only the
// assignments or routes that it contains. Contents are "name=content" here, because the test's resources have no other
// name in this variant.
type sotwModel struct {
	has map[string]map[string]string
	*sotwClient
}

func (m *sotwModel) connect(t *testing.T, r *testServer) {
	m.sotwClient = r.newSotwClient(t)
	for _, typeURL := range independentTypes {
		if impliesWildcard(typeURL) {
			m.request(typeURL)
		} else {
			m.request(typeURL, modelNames...)
		}
	}
}

func (m *sotwModel) apply(resp *discoveryv3.DiscoveryResponse) {
	typeURL := resp.GetTypeUrl()
	next := map[string]string{}
	if !impliesWildcard(typeURL) {
		next = m.has[typeURL]
	}
	for _, res := range resp.GetResources() {
		if strings.HasSuffix(string(res.GetValue()), "bad") {
			m.ack(resp, "no")
			return
		}
	}
	for _, res := range resp.GetResources() {
		name := strings.TrimPrefix(string(res.GetValue()), "eds ")[:2]
		next[name] = string(res.GetValue())
	}
	m.has[typeURL] = next
	m.ack(resp, "")
}

func (m *sotwModel) describeMissing(w meshState) string {
	for _, typeURL := range independentTypes {
		for name, content := range w[typeURL] {
			if m.has[typeURL][name] != content {
				return fmt.Sprintf("%s %s is %q, want %q", ShortType(typeURL), name, m.has[typeURL][name], content)
			}
		}
		for name := range m.has[typeURL] {
			if _, ok := w[typeURL][name]; !ok && impliesWildcard(typeURL) {
				return fmt.Sprintf("%s %s is not removed", ShortType(typeURL), name)
			}
		}
	}
	return ""
}

func (m *sotwModel) converge(t *testing.T, r *testServer, w meshState) {
	t.Helper()
	for range 10 {
		r.push(w, independentTypes...)
		r.awaitStatus("all answers", func(s ClientStatus) bool {
			select {
			case resp := <-m.got:
				m.nonce[resp.GetTypeUrl()] = resp.GetNonce()
				m.apply(resp)
			default:
			}
			return !s.Pushing && countUnanswered(s) == 0 && len(s.Types) == len(independentTypes)
		})
		if m.describeMissing(w) == "" {
			return
		}
	}
	t.Fatalf("the client does not reach the pushed state: %s", m.describeMissing(w))
}

// withNames prefixes each content with its resource's name.
func withNames(w meshState) meshState {
	out := meshState{}
	for typeURL, byName := range w {
		for name, content := range byName {
			out = out.withResource(typeURL, name, "eds "+name+" "+content)
		}
	}
	return out
}

func checkSotwConvergence(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newTestServer(t, Config{})
	w := meshState{}
	r.push(w)
	m := &sotwModel{has: emptyResources()}
	m.connect(t, r)
	for range 40 {
		for range rng.IntN(3) {
			var types []string
			w, types = randomChange(rng, w)
			r.push(withNames(w), types...)
		}
		for range rng.IntN(4) {
			select {
			case resp := <-m.got:
				m.nonce[resp.GetTypeUrl()] = resp.GetNonce()
				m.apply(resp)
			case <-time.After(time.Duration(rng.IntN(2)) * time.Millisecond):
			}
		}
		if rng.IntN(8) == 0 {
			m.cancel()
			for range m.got { // until the stream ends
			}
			m.connect(t, r)
		}
	}
	m.converge(t, r, withNames(withoutBadResources(w)))
}

func TestSotwClientConvergesAfterRandomEvents(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkSotwConvergence(t, seed) })
	}
}
