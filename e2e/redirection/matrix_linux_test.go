package redirection

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

// backends lists the constructors of the backends, each for one namespace.
var backends = map[string]func(t testing.TB, ns *testns.Namespace) iptables.Backend{
	"nftables": func(t testing.TB, ns *testns.Namespace) iptables.Backend {
		b, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
		if err != nil {
			t.Fatal(err)
		}
		return b
	},
	"iptables-nft":    func(t testing.TB, ns *testns.Namespace) iptables.Backend { return byPrograms(t, ns, xtables.NFT) },
	"iptables-legacy": func(t testing.TB, ns *testns.Namespace) iptables.Backend { return byPrograms(t, ns, xtables.Legacy) },
}

func byPrograms(t testing.TB, ns *testns.Namespace, flavour xtables.Flavour) iptables.Backend {
	requirePrograms(t, "iptables-"+string(flavour)+"-restore", "ip6tables-"+string(flavour)+"-restore")
	b, err := xtables.New(t.Context(), xtables.Config{NetNS: int(ns.Handle), Flavour: flavour})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEveryConnectionArrivesWhereItShould(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestNetwork(t)
			w.serve(t)
			b := backend(t, w.pod)
			for _, o := range sets {
				t.Run(o.name, func(t *testing.T) { w.prove(t, b, o) })
			}
			t.Run("after cleaning up", func(t *testing.T) {
				if err := b.Clean(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.connectAll(t, func(c connection, _ int) string { return c.natural }, []string{"pass", "apppass"})
			})
		})
	}
}

// parse parses flags of the form "name=value".
func parse(t testing.TB, flags []string) iptables.Options {
	t.Helper()
	o := iptables.DefaultOptions()
	for _, f := range flags {
		name, value, _ := strings.Cut(f, "=")
		if err := o.Set(name, value, iptables.Names{}); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func (w *testNetwork) prove(t *testing.T, b iptables.Backend, o options) {
	parsed := parse(t, o.flags)
	rules, err := iptables.Compile(parsed)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	in, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := iptables.Canonical(rules); !reflect.DeepEqual(in.Rules, want) || len(in.Strange) > 0 {
		t.Errorf("read back, it is\n%+v\nstrange: %q\nwant\n%+v", in.Rules, in.Strange, want)
	}
	w.explainAll(t, rules, o)
	w.checkConnections(t, parsed, o)
}

// checkConnections makes all connections that are relevant for a set of options.
func (w *testNetwork) checkConnections(t testing.TB, parsed iptables.Options, o options) {
	t.Helper()
	w.mark.Store(int32(parsed.TProxyMark))
	w.proxy.Store(&owner{1337, 1337})
	w.connectAll(t, o.expectedPlace, nil)
	if parsed.RedirectDNS && len(o.exceptions) > 0 {
		w.sharePorts(t, o)
	}
	if o.transparent {
		w.fromCapturedPort(t, o)
	}
	w.forwardAll(t, o)
}

// connectAll makes every connection of the table, of both families.
func (w *testNetwork) connectAll(t testing.TB, place func(connection, int) string, leaveOut []string) {
	t.Helper()
	w.flushConntrack(t)
	for _, c := range connections() {
		for family := range 2 {
			p, ok := c.probe(family)
			if !ok || contains(leaveOut, c.who) || c.who == "pass" && family == 1 && !w.hasAddress(address("pass", 1)) || c.who == "apppass" && family == 1 && !w.hasAddress(address("pass", 1)) {
				continue
			}
			want, got := place(c, family), w.arrive(p, c.namespace(w), place(c, family))
			if arrived := arrival(got); arrived != want {
				t.Errorf("%s, IPv%d: arrived at %s (%s), want %s", c.name, 4+2*family, arrived, got, want)
				continue
			}
			if want == "refused" || want == "silence" || c.network == "udp" {
				continue
			}
			if _, _, meant := splitReply(got); meant != p.to.String() {
				t.Errorf("%s, IPv%d: %s takes it to be meant for %s", c.name, 4+2*family, want, meant)
			}
		}
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// hasAddress reports whether the pod has the address, which the rules for IPv6 add.
func (w *testNetwork) hasAddress(a netip.Addr) bool {
	reply := probe{network: "udp", from: netip.AddrPortFrom(a, 0), to: netip.AddrPortFrom(a, 9), owner: owner{}}.run(w.pod)
	return !strings.Contains(reply, "cannot assign")
}

func arrival(reply string) string {
	name, _, _ := strings.Cut(reply, "|")
	return name
}

// splitReply splits a reply.
func splitReply(reply string) (name, from, meant string) {
	first, _, _ := strings.Cut(reply, ">")
	parts := append(strings.Split(first, "|"), "", "", "")
	return parts[0], parts[1], parts[2]
}

// forwardAll makes the proxy forward connections as Envoy does. The forwarded connections must not be redirected back to
// the proxy. With TPROXY, the application sees the client's address.
func (w *testNetwork) forwardAll(t testing.TB, o options) {
	t.Helper()
	for family := range 2 {
		for _, by := range []owner{{1337, 1337}, {0, 1337}, {1337, 0}} {
			if strings.Contains(o.name, "another user") && by.gid != 1337 || strings.Contains(o.name, "another group") && by.uid != 1337 {
				continue
			}
			w.proxy.Store(&by)
			for _, c := range connections() {
				if c.name == "app tcp mesh:80" || c.name == "far tcp own:80" || c.name == "round tcp own:80" || c.name == "peer tcp own:8080" || c.name == "proxy tcp own:80" {
					w.pass(t, o, c, family, by)
				}
			}
		}
	}
}

func (w *testNetwork) pass(t testing.TB, o options, c connection, family int, by owner) {
	t.Helper()
	place := o.expectedPlace(c, family)
	if place != "inbound" && place != "outbound" {
		return
	}
	p, _ := c.probe(family)
	p.requestType = requestForwarded
	// The proxy cannot forward its own calls with their source address.
	if o.transparent && place == "inbound" && c.who != "proxy" {
		p.requestType = requestTransparent
	}
	reply := w.arrive(p, c.namespace(w), place)
	_, passed, _ := strings.Cut(reply, ">")
	_, from, meant := splitReply(passed)
	want := map[string]string{"inbound": "app", "outbound": "peer"}[place]
	if arrival(passed) != want || meant != p.to.String() {
		t.Errorf("%s, IPv%d, passed on as %v: %s, want %s", c.name, 4+2*family, by, reply, want)
		return
	}
	_, client, _ := splitReply(reply)
	if p.requestType == requestTransparent && host(from) != host(client) {
		t.Errorf("%s, IPv%d, passed on as %v: the application sees %s, not the client %s", c.name, 4+2*family, by, from, client)
	}
}

func host(address string) netip.Addr { return netip.MustParseAddrPort(address).Addr() }

// sharePorts makes an application and the agent query the same resolver from the same port within a short time. The
// kernel must not treat the two queries as one connection.
func (w *testNetwork) sharePorts(t testing.TB, o options) {
	t.Helper()
	ask := map[string]connection{}
	for _, c := range connections() {
		ask[c.name] = c
	}
	port := uint16(20000)
	for family := range 2 {
		for _, pair := range [][2]string{{"app", "proxy"}, {"proxy", "app"}, {"group", "gid"}, {"gid", "group"}, {"app", "uid"}, {"uid", "app"}} {
			port++
			for _, name := range pair {
				c := ask[name+" udp resolver:53"]
				p, _ := c.probe(family)
				p.from = netip.AddrPortFrom(address("own", family), port)
				want, got := o.expectedPlace(c, family), w.arrive(p, w.pod, o.expectedPlace(c, family))
				if arrival(got) != want {
					t.Errorf("%s, IPv%d, from a port that %s uses too: %s, want %s", c.name, 4+2*family, strings.Join(pair[:], " and "), got, want)
				}
			}
		}
	}
}

// capturedPort is an inbound capture port on which no process listens.
const capturedPort = 20443

// fromCapturedPort makes the proxy connect from an inbound capture port. The replies to that port are not inbound
// traffic.
func (w *testNetwork) fromCapturedPort(t testing.TB, o options) {
	t.Helper()
	for family := range 2 {
		if family == 1 && o.ipv6 != "" {
			continue
		}
		p := probe{network: "tcp", from: netip.AddrPortFrom(address("own", family), capturedPort),
			to: netip.AddrPortFrom(address("mesh", family), 80), owner: owner{1337, 1337}}
		if got := w.arrive(p, w.pod, "peer"); arrival(got) != "peer" {
			t.Errorf("proxy tcp mesh:80, IPv%d, from port %d: %s, want peer", 4+2*family, capturedPort, got)
		}
	}
}

// explainAll compares the explanation with where the connections arrive.
func (w *testNetwork) explainAll(t testing.TB, rules *iptables.RuleSet, o options) {
	t.Helper()
	for _, c := range connections() {
		for family := range 2 {
			p, ok := c.probe(family)
			if !ok {
				continue
			}
			packet := c.packet(p, family)
			e := iptables.Explain(rules, packet)
			if got, want := explained(e, c), o.expectedPlace(c, family); got != want {
				t.Errorf("%s, IPv%d: the explanation is that it arrives at %s, and it should at %s: %s", c.name, 4+2*family, got, want, e.Why)
			}
		}
	}
}

func explained(e iptables.Explanation, c connection) string {
	switch e.End {
	case iptables.Passes:
		return c.natural
	case iptables.Redirected, iptables.Transparent:
		return podService(int(e.Port))
	case iptables.Refused:
		return "refused"
	}
	return fmt.Sprint(e.End)
}

// packet returns the connection's first packet in the form of the model.
func (c connection) packet(p probe, family int) iptables.Packet {
	packet := iptables.Packet{Direction: iptables.Outbound, Protocol: iptables.Protocol(c.network), To: p.to, Interface: c.link()}
	source := map[string]string{"eth0": "own", "net1": "net1", "lo": c.to}[c.link()]
	if c.inbound() {
		packet.Direction, packet.Forwarded = iptables.Inbound, isPeers(c.to)
		source = map[string]string{"eth0": "outside", "net1": "outside1", "vif0": "machine"}[c.link()]
	} else {
		uid, gid := uint32(p.owner.uid), uint32(p.owner.gid)
		packet.UID, packet.GID = &uid, &gid
	}
	if from := clients[c.who].from; from != "" {
		source = from
	}
	packet.From = netip.AddrPortFrom(address(source, family), 40000)
	return packet
}

// link returns the pod's interface that the packet passes.
func (c connection) link() string {
	switch {
	case c.who == "machine":
		return "vif0"
	case c.inbound() && c.to == "net1", c.to == "through1":
		return "net1"
	case c.inbound(), isPeers(c.to):
		return "eth0"
	}
	return "lo"
}
