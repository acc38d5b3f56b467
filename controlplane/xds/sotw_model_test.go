package xds

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// sotwModel is a client that does as Envoy does: clusters and listeners are replaced by each response, of assignments and
// routes those in the response. Contents are "name=content" here, because resources have no names in this protocol.
type sotwModel struct {
	has map[string]map[string]string
	*sotwClient
}

func (m *sotwModel) connect(t *testing.T, r *rig) {
	m.sotwClient = r.sotw(t)
	for _, typeURL := range wholeTypes {
		if impliesWildcard(typeURL) {
			m.want(typeURL)
		} else {
			m.want(typeURL, modelNames...)
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
			m.answer(resp, "no")
			return
		}
	}
	for _, res := range resp.GetResources() {
		name := strings.TrimPrefix(string(res.GetValue()), "eds ")[:2]
		next[name] = string(res.GetValue())
	}
	m.has[typeURL] = next
	m.answer(resp, "")
}

func (m *sotwModel) lacks(w world) string {
	for _, typeURL := range wholeTypes {
		for name, content := range w[typeURL] {
			if m.has[typeURL][name] != content {
				return fmt.Sprintf("%s %s is %q, want %q", ShortType(typeURL), name, m.has[typeURL][name], content)
			}
		}
		for name := range m.has[typeURL] {
			if _, ok := w[typeURL][name]; !ok && impliesWildcard(typeURL) {
				return fmt.Sprintf("%s %s is still there", ShortType(typeURL), name)
			}
		}
	}
	return ""
}

func (m *sotwModel) converge(t *testing.T, r *rig, w world) {
	t.Helper()
	for range 10 {
		r.push(w, wholeTypes...)
		r.only("all answers", func(s ClientStatus) bool {
			select {
			case resp := <-m.got:
				m.nonce[resp.GetTypeUrl()] = resp.GetNonce()
				m.apply(resp)
			default:
			}
			return !s.Pushing && unanswered(s) == 0 && len(s.Types) == len(wholeTypes)
		})
		if m.lacks(w) == "" {
			return
		}
	}
	t.Fatalf("the client does not converge: %s", m.lacks(w))
}

// named makes contents tell their names.
func named(w world) world {
	out := world{}
	for typeURL, byName := range w {
		for name, content := range byName {
			out = out.with(typeURL, name, "eds "+name+" "+content)
		}
	}
	return out
}

func checkSotwConvergence(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t, Config{})
	w := world{}
	r.push(w)
	m := &sotwModel{has: nothing()}
	m.connect(t, r)
	for range 40 {
		for range rng.IntN(3) {
			var types []string
			w, types = randomChange(rng, w)
			r.push(named(w), types...)
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
			for range m.got { // to its end
			}
			m.connect(t, r)
		}
	}
	m.converge(t, r, named(healed(w)))
}

func TestSotwClientConvergesUnderRandomChangesReconnectsAndRejections(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkSotwConvergence(t, seed) })
	}
}
