package redirection

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func oneOf[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// randomConnection returns a random possible connection; few of them are in the table.
func randomConnection(r *rand.Rand) connection {
	beyond := slices.DeleteFunc(slices.Clone(peers), func(name string) bool { return name == "far" })
	own := []string{"own", "net1", "virtual"}
	c := connection{who: oneOf(r, slices.Sorted(maps.Keys(clients))), network: oneOf(r, []string{"tcp", "tcp", "udp"})}
	switch c.who {
	case "machine":
		c.to = oneOf(r, append(beyond, own...))
	case "peer":
		c.to = oneOf(r, own[:2])
	case "pass", "apppass", "far", "round":
		c.to = "own"
	default:
		c.to = oneOf(r, append(append(beyond, "outside", "localhost", "loop5"), own...))
	}
	ports := podPorts
	switch {
	case isPeers(c.to) && c.network == "udp":
		ports = []int{53, 9999}
	case isPeers(c.to):
		ports = peerPorts
	case c.network == "udp":
		ports = datagrams
	}
	c.port, c.natural = oneOf(r, ports), "peer"
	if !isPeers(c.to) {
		c.natural = podService(c.port)
	}
	c.name = c.who + " " + c.network + " " + c.to
	return c
}

// onlyFirstPacketArrives reports whether only the first packet of the connection arrives as explained. No test client makes such a
// connection work.
func onlyFirstPacketArrives(o iptables.Options, c connection, e iptables.Explanation) bool {
	return c.network == "udp" && e.End == iptables.Redirected && // only the proxy may reply, because other replies are in another zone
		!slices.Contains(o.ProxyUIDs, 1337) && !slices.Contains(o.ProxyGIDs, 1337)
}

// checkRandomConnections makes random connections and compares where they arrive with the explanation.
func (w *testNetwork) checkRandomConnections(t *testing.T, r *rand.Rand, o iptables.Options, rules *iptables.RuleSet) {
	t.Helper()
	for range 20 {
		c, family := randomConnection(r), r.IntN(2)
		p, ok := c.probe(family)
		if !ok || clients[c.who].from == "pass" && !w.hasAddress(address("pass", family)) {
			continue
		}
		e := iptables.Explain(rules, c.packet(p, family))
		want := explained(e, c)
		if e.End == iptables.Dropped {
			want = "silence"
		}
		if onlyFirstPacketArrives(o, c, e) {
			continue
		}
		if got := w.arrive(p, c.namespace(w), want); arrival(got) != want {
			t.Errorf("%s:%d, IPv%d: arrived at %s, and it is explained to be %s: %s", c.name, c.port, 4+2*family, got, want, e.Why)
		}
	}
}
