package xds

import (
	"context"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// onDemandSource is a fake whose clients request virtual hosts on demand: a name resolves to the same name in lower
// case, if it exists.
type onDemandSource struct {
	fakeSource
	before PushScope
}

func (a *onDemandSource) Connect(ctx context.Context, node *corev3.Node, peer Peer) (Proxy, error) {
	_, err := a.fakeSource.Connect(ctx, node, peer)
	return a, err
}

func (a *onDemandSource) Hooks() Hooks {
	return Hooks{AttributeNACK: a.attributeNACK, ResolveOnDemand: a.resolveOnDemand}
}

func (a *onDemandSource) resolveOnDemand(state State, names []string) (leads map[string]string, before PushScope) {
	leads = map[string]string{}
	for _, name := range names {
		if host := strings.ToLower(name); state.(meshState)[VirtualHostType][host] != "" {
			leads[name] = host
		}
	}
	return leads, a.before
}

// newOnDemandServer starts a server with route configuration r and virtual hosts a and b, and a client that has all of
// them.
func newOnDemandServer(t *testing.T) (*testServer, *onDemandSource, *deltaClient) {
	t.Helper()
	source := &onDemandSource{}
	r := newTestServer(t, Config{Source: source})
	r.push(onDemandState)
	c := r.newDeltaClient()
	c.subscribe(cds)
	c.expect("cds +c=1")
	c.subscribe(rds, "r")
	c.expect("rds +r=apart")
	c.subscribe(VirtualHostType)
	c.expect("vhds +r/a=1 +r/b=1")
	c.expect("rds +r=apart")
	return r, source, c
}

var onDemandState = meshState{cds: {"c": "1"}, rds: {"r": "apart"}, VirtualHostType: {"r/a": "1", "r/b": "1"}}

func TestEachOnDemandNameIsAnswered(t *testing.T) {
	r, source, c := newOnDemandServer(t)
	c.subscribe(VirtualHostType, "r/A") // the client already has the resource, but Envoy waits for a response
	c.expect("vhds +r/a=1(r/A)")
	c.subscribe(VirtualHostType, "r/B", "r/b", "r/none")
	c.expect("vhds +r/b=1(r/B r/b)")
	c.expect("vhds +r/none=(r/none)")
	c.expectNothing()

	// The server sends resources that must precede the response first.
	source.before = PushScope{cds: {Names: []string{"d"}}}
	r.Push(onDemandState.withResource(cds, "d", "1").withResource(VirtualHostType, "r/c", "to d"), testChange{})
	c.subscribe(VirtualHostType, "r/C")
	c.expect("cds +d=1")
	c.expect("vhds +r/c=to d(r/C)")
	c.expectNothing()
}

func TestOnDemandNamesOfRejectedResourcesAreAnswered(t *testing.T) {
	r, _, c := newOnDemandServer(t)
	r.push(onDemandState.withResource(VirtualHostType, "r/c", "bad").withResource(VirtualHostType, "r/d", "1"), VirtualHostType)
	both := c.next()
	if got := describe(both); got != "vhds +r/c=bad +r/d=1" {
		t.Fatal(got)
	}
	c.subscribe(VirtualHostType, "r/C", "r/D")
	named := c.next()
	if got := describe(named); got != "vhds +r/c=bad(r/C) +r/d=1(r/D)" {
		t.Fatal(got)
	}
	c.nack(both, "one of them")
	c.nack(named, "one of them")
	answered := map[string]bool{}
	for range 20 {
		m := c.next()
		text := describe(m)
		for _, one := range m.GetResources() {
			for _, alias := range one.GetAliases() {
				answered[alias] = answered[alias] || !strings.Contains(text, "bad")
			}
		}
		if strings.Contains(text, "bad") {
			c.nack(m, "r/c is bad")
		} else {
			c.ack(m)
		}
		if answered["r/C"] && answered["r/D"] {
			if !strings.Contains(text, "r/c=") && !strings.Contains(text, "r/d=") && !strings.Contains(text, "+r/C=(r/C)") {
				t.Errorf("the last response is %s", text)
			}
			return
		}
	}
	t.Errorf("the answered names are %v", answered)
}

func TestOnDemandNamesAreAnsweredAfterReconnect(t *testing.T) {
	r, _, c := newOnDemandServer(t)
	c.cancel()
	_ = c.awaitEnd()
	again := r.newDeltaClient()
	again.resume(cds, nil, map[string]string{"c": "1"})
	again.resume(rds, []string{"r"}, map[string]string{"r": "apart"})
	again.resume(VirtualHostType, []string{wildcardName, "r/A", "r/b", "r/late"}, map[string]string{"r/a": "1", "r/b": "1"})
	again.expect("vhds +r/a=1(r/A)") // the virtual host b that the client claims answers r/b
	again.expect("vhds +r/late=(r/late)")
	again.expectNothing()
}
