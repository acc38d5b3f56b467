package xds

import (
	"slices"
	"strings"
	"testing"
)

// TestNobodyIsInSyncWhileWhatFollowsFromAnAnswerIsMade: the acceptance of virtual hosts has their route configuration sent
// once more.
func TestNobodyIsInSyncWhileWhatFollowsFromAnAnswerIsMade(t *testing.T) {
	r := newRig(t, Config{})
	r.push(world{cds: {"c": "1"}, rds: {"r": "apart"}, VirtualHostType: {"r/h": "1"}})
	c := r.delta()
	c.subscribe(cds)
	c.expect("cds +c=1")
	c.subscribe(rds, "r")
	c.expect("rds +r=apart")
	c.subscribe(VirtualHostType, "r/")
	hosts := c.next()
	if got := show(hosts); !strings.HasSuffix(got, " +r/h=1") {
		t.Fatal(got)
	}
	r.only("the answer to the route configuration", func(s ClientStatus) bool { return typeOf(s, rds).Unanswered == 0 })
	seen := make(chan bool, 1)
	r.source.mu.Lock()
	r.source.broken = func(typeURL string) error {
		if typeURL == rds {
			seen <- slices.ContainsFunc(r.Clients(), func(s ClientStatus) bool { return s.InSync })
		}
		return nil
	}
	r.source.mu.Unlock()
	c.ack(hosts)
	if <-seen {
		t.Error("it is said to be in sync before the route configuration is sent again")
	}
	r.source.mu.Lock()
	r.source.broken = nil
	r.source.mu.Unlock()
	c.expect("rds +r=apart")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
}
