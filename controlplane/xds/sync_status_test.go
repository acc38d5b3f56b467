package xds

import (
	"slices"
	"strings"
	"testing"
)

// TestClientIsNotInSyncDuringTransition: after the client has accepted virtual hosts, the server sends their route
// configuration once more. Until then the client must not count as in sync.
func TestClientIsNotInSyncDuringTransition(t *testing.T) {
	r := newTestServer(t, Config{})
	r.push(meshState{cds: {"c": "1"}, rds: {"r": "apart"}, VirtualHostType: {"r/h": "1"}})
	c := r.newDeltaClient()
	c.subscribe(cds)
	c.expect("cds +c=1")
	c.subscribe(rds, "r")
	c.expect("rds +r=apart")
	c.subscribe(VirtualHostType, "r/")
	hosts := c.next()
	if got := describe(hosts); !strings.HasSuffix(got, " +r/h=1") {
		t.Fatal(got)
	}
	r.awaitStatus("the answer to the route configuration", func(s ClientStatus) bool { return typeStatus(s, rds).Unanswered == 0 })
	seen := make(chan bool, 1)
	r.source.mu.Lock()
	r.source.generateErr = func(typeURL string) error {
		if typeURL == rds {
			seen <- slices.ContainsFunc(r.Clients(), func(s ClientStatus) bool { return s.InSync })
		}
		return nil
	}
	r.source.mu.Unlock()
	c.ack(hosts)
	if <-seen {
		t.Error("the client is reported in sync before the route configuration is sent again")
	}
	r.source.mu.Lock()
	r.source.generateErr = nil
	r.source.mu.Unlock()
	c.expect("rds +r=apart")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}
