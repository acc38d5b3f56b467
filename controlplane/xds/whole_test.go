package xds

import (
	"context"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// keeping is a Source of one client that does not go back from whole route configurations, if it is an old one.
type keeping struct {
	fake
	old   bool
	whole atomic.Bool
}

func (k *keeping) Connect(context.Context, *corev3.Node, Peer) (Proxy, error) { return k, nil }

func (k *keeping) KeepWhole() bool {
	k.whole.Store(k.old)
	return k.old
}

func (k *keeping) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	if k.whole.Load() {
		state = state.(world).with(rds, "r", "whole").with(VirtualHostType, "r/a", "never")
	}
	return k.fake.Generate(state, typeURL, wildcard, names)
}

func TestWhatAClientComesWithTellsWhetherItHadRoutesWhole(t *testing.T) {
	hosts := map[string]string{"r/a": "1", "r/b": "1"}
	for name, test := range map[string]struct {
		routes, hosts map[string]string
		hostsFirst    bool
		old           []string // what a client gets that does not go back
		young         []string // and what another one gets
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
		"virtual hosts of what it does not have": {
			hosts: hosts,
			old:   []string{"rds +r=apart+", "rds +r=whole"}, // before it told of virtual hosts there was no telling
			young: []string{"rds +r=apart+", "vhds +r/a=1 +r/b=1", "rds +r=apart+"},
		},
		"virtual hosts, and it asks for routes later": {
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
				source := &keeping{old: old}
				r := newRig(t, Config{Source: source})
				first := world{cds: {"c": "1"}, rds: {"r": "apart+"}, VirtualHostType: {"r/a": "1", "r/b": "1"}}
				r.push(first)
				c := r.delta()
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
				c.silence()
				r.only("in sync", func(s ClientStatus) bool { return s.InSync })
				r.push(first.with(VirtualHostType, "r/a", "2"), VirtualHostType)
				if !source.whole.Load() {
					c.expect("vhds +r/a=2")
				}
				r.only("in sync", func(s ClientStatus) bool { return s.InSync })
				c.silence()
			})
		}
	}
}
