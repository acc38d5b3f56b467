package xds

import (
	"context"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// asking is a fake whose clients ask for virtual hosts: a name leads to what it is in small letters, if that is there.
type asking struct {
	fake
	before Touches
}

func (a *asking) Connect(ctx context.Context, node *corev3.Node, peer Peer) (Proxy, error) {
	_, err := a.fake.Connect(ctx, node, peer)
	return a, err
}

func (a *asking) Ask(state State, names []string) (leads map[string]string, before Touches) {
	leads = map[string]string{}
	for _, name := range names {
		if host := strings.ToLower(name); state.(world)[VirtualHostType][host] != "" {
			leads[name] = host
		}
	}
	return leads, a.before
}

// askedRig has route configuration r, with virtual hosts a and b, and a client that has it, and them.
func askedRig(t *testing.T) (*rig, *asking, *deltaClient) {
	t.Helper()
	source := &asking{}
	r := newRig(t, Config{Source: source})
	r.push(askedWorld)
	c := r.delta()
	c.subscribe(cds)
	c.expect("cds +c=1")
	c.subscribe(rds, "r")
	c.expect("rds +r=apart")
	c.subscribe(VirtualHostType)
	c.expect("vhds +r/a=1 +r/b=1")
	c.expect("rds +r=apart")
	return r, source, c
}

var askedWorld = world{cds: {"c": "1"}, rds: {"r": "apart"}, VirtualHostType: {"r/a": "1", "r/b": "1"}}

func TestEachNameOfAVirtualHostIsAnswered(t *testing.T) {
	r, source, c := askedRig(t)
	c.subscribe(VirtualHostType, "r/A") // it is there already, and yet Envoy waits
	c.expect("vhds +r/a=1(r/A)")
	c.subscribe(VirtualHostType, "r/B", "r/b", "r/none")
	c.expect("vhds +r/b=1(r/B r/b)")
	c.expect("vhds +r/none=(r/none)")
	c.silence()

	// What has to be there before it goes before it.
	source.before = Touches{cds: {Names: []string{"d"}}}
	r.Push(askedWorld.with(cds, "d", "1").with(VirtualHostType, "r/c", "to d"), changed{})
	c.subscribe(VirtualHostType, "r/C")
	c.expect("cds +d=1")
	c.expect("vhds +r/c=to d(r/C)")
	c.silence()
}

func TestNamesThatWaitForWhatIsRefusedAreAnsweredAllTheSame(t *testing.T) {
	r, _, c := askedRig(t)
	r.push(askedWorld.with(VirtualHostType, "r/c", "bad").with(VirtualHostType, "r/d", "1"), VirtualHostType)
	both := c.next()
	if got := show(both); got != "vhds +r/c=bad +r/d=1" {
		t.Fatal(got)
	}
	c.subscribe(VirtualHostType, "r/C", "r/D")
	named := c.next()
	if got := show(named); got != "vhds +r/c=bad(r/C) +r/d=1(r/D)" {
		t.Fatal(got)
	}
	c.nack(both, "one of them")
	c.nack(named, "one of them")
	answered := map[string]bool{}
	for range 20 {
		m := c.next()
		text := show(m)
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
				t.Errorf("the last answer is %s", text)
			}
			return
		}
	}
	t.Errorf("answered are %v", answered)
}

func TestNamesThatAClientAskedForBeforeItCameBackAreAnswered(t *testing.T) {
	r, _, c := askedRig(t)
	c.cancel()
	_ = c.end()
	again := r.delta()
	again.resume(cds, nil, map[string]string{"c": "1"})
	again.resume(rds, []string{"r"}, map[string]string{"r": "apart"})
	again.resume(VirtualHostType, []string{wildcardName, "r/A", "r/b", "r/late"}, map[string]string{"r/a": "1", "r/b": "1"})
	again.expect("vhds +r/a=1(r/A)") // b is answered by what it has
	again.expect("vhds +r/late=(r/late)")
	again.silence()
}
