package xds

import (
	"context"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// vhdsDisablingSource is a Source for one client. If old is set, the client cannot switch back from inline virtual
// hosts to VHDS.
type vhdsDisablingSource struct {
	fakeSource
	old      bool
	disabled atomic.Bool
}

func (k *vhdsDisablingSource) Connect(context.Context, *corev3.Node, Peer) (Proxy, error) {
	return k, nil
}

func (k *vhdsDisablingSource) Hooks() Hooks {
	return Hooks{AttributeNACK: k.attributeNACK, DisableVHDS: k.disableVHDS}
}

func (k *vhdsDisablingSource) disableVHDS() bool {
	k.disabled.Store(k.old)
	return k.old
}

func (k *vhdsDisablingSource) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	if k.disabled.Load() {
		state = state.(meshState).withResource(rds, "r", "whole").withResource(VirtualHostType, "r/a", "never")
	}
	return k.fakeSource.Generate(state, typeURL, wildcard, names)
}

func TestClaimsShowWhetherClientHadInlineRoutes(t *testing.T) {
	hosts := map[string]string{"r/a": "1", "r/b": "1"}
	for name, test := range map[string]struct {
		routes, hosts map[string]string
		hostsFirst    bool
		old           []string // responses to a client that cannot switch back
		young         []string // responses to a client that can switch back
	}{
		"apart": {routes: map[string]string{"r": "apart+"}, hosts: hosts},
		"of another control plane": {
			routes: map[string]string{"r": "foreign"}, hosts: hosts,
			old:   []string{"rds +r=whole"},
			young: []string{"rds +r=apart+", "vhds +r/a=1 +r/b=1", "rds +r=apart+"},
		},
		"whole, from here": {
			routes: map[string]string{"r": "whole"}, hosts: hosts,
			young: []string{"rds +r=apart+", "vhds +r/a=1 +r/b=1", "rds +r=apart+"},
		},
		"virtual hosts of a route configuration that the client does not have": {
			hosts: hosts,
			// Until the client claims virtual hosts, the server cannot detect the case.
			old:   []string{"rds +r=apart+", "rds +r=whole"},
			young: []string{"rds +r=apart+", "vhds +r/a=1 +r/b=1", "rds +r=apart+"},
		},
		"virtual hosts, then a request for routes": {
			hosts: hosts, hostsFirst: true,
			old:   []string{"rds +r=whole"},
			young: []string{"rds +r=apart+", "vhds +r/a=1 +r/b=1", "rds +r=apart+"},
		},
		"provisional": {
			routes: map[string]string{"r": "apart+~"}, hosts: hosts,
			old:   []string{"rds +r=apart+", "vhds +r/a=1 +r/b=1", "rds +r=apart+"},
			young: []string{"rds +r=apart+", "vhds +r/a=1 +r/b=1", "rds +r=apart+"},
		},
	} {
		for _, old := range []bool{true, false} {
			kind, want := "young", test.young
			if old {
				kind, want = "old", test.old
			}
			t.Run(name+" "+kind, func(t *testing.T) {
				source := &vhdsDisablingSource{old: old}
				r := newTestServer(t, Config{Source: source})
				first := meshState{cds: {"c": "1"}, rds: {"r": "apart+"}, VirtualHostType: {"r/a": "1", "r/b": "1"}}
				r.push(first)
				c := r.newDeltaClient()
				c.resume(cds, nil, map[string]string{"c": "1"})
				if test.hostsFirst {
					c.resume(VirtualHostType, nil, test.hosts)
				}
				c.resume(rds, []string{"r"}, test.routes)
				if !test.hostsFirst {
					c.resume(VirtualHostType, nil, test.hosts)
				}
				for _, response := range want {
					c.expect(response)
				}
				c.expectNothing()
				r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
				r.push(first.withResource(VirtualHostType, "r/a", "2"), VirtualHostType)
				if !source.disabled.Load() {
					c.expect("vhds +r/a=2")
				}
				r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
				c.expectNothing()
			})
		}
	}
}
