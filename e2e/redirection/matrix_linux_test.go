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
	"github.com/pilotfish-mesh/pilotfish/iptables/xt"
)

// backends are made for a namespace each.
var backends = map[string]func(t testing.TB, ns *testns.Namespace) iptables.Backend{
	"nftables": func(t testing.TB, ns *testns.Namespace) iptables.Backend {
		b, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
		if err != nil {
			t.Fatal(err)
		}
		return b
	},
	"iptables-nft":    func(t testing.TB, ns *testns.Namespace) iptables.Backend { return byPrograms(t, ns, xt.NFT) },
	"iptables-legacy": func(t testing.TB, ns *testns.Namespace) iptables.Backend { return byPrograms(t, ns, xt.Legacy) },
}

func byPrograms(t testing.TB, ns *testns.Namespace, flavour xt.Flavour) iptables.Backend {
	installed(t, "iptables-"+string(flavour)+"-restore", "ip6tables-"+string(flavour)+"-restore")
	b, err := xt.New(t.Context(), xt.Config{NetNS: int(ns.Handle), Flavour: flavour})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEveryConnectionArrivesWhereItShould(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
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

// parse makes options of "name=value".
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

func (w *world) prove(t *testing.T, b iptables.Backend, o options) {
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
	w.makeAll(t, parsed, o)
}

// makeAll makes all connections that bear on a set of options.
func (w *world) makeAll(t testing.TB, parsed iptables.Options, o options) {
	t.Helper()
	w.mark.Store(int32(parsed.TProxyMark))
	w.proxy.Store(&owner{1337, 1337})
	w.connectAll(t, o.place, nil)
	if parsed.RedirectDNS && len(o.but) > 0 {
		w.sharePorts(t, o)
	}
	if o.transparent {
		w.fromCapturedPort(t, o)
	}
	w.passAll(t, o)
}

// connectAll makes every connection of the table, of both families.
func (w *world) connectAll(t testing.TB, place func(connection, int) string, leaveOut []string) {
	t.Helper()
	w.forget(t)
	for _, c := range connections() {
		for family := range 2 {
			p, ok := c.probe(family)
			if !ok || contains(leaveOut, c.who) || c.who == "pass" && family == 1 && !w.has(address("pass", 1)) || c.who == "apppass" && family == 1 && !w.has(address("pass", 1)) {
				continue
			}
			want, got := place(c, family), w.arrive(p, c.namespace(w), place(c, family))
			if told := arrival(got); told != want {
				t.Errorf("%s, IPv%d: arrived at %s (%s), want %s", c.name, 4+2*family, told, got, want)
				continue
			}
			if want == "refused" || want == "silence" || c.network == "udp" {
				continue
			}
			if _, _, meant := fields(got); meant != p.to.String() {
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

// has tells whether the pod has the address, which is given to it with the rules for IPv6.
func (w *world) has(a netip.Addr) bool {
	said := probe{network: "udp", from: netip.AddrPortFrom(a, 0), to: netip.AddrPortFrom(a, 9), owner: owner{}}.run(w.pod)
	return !strings.Contains(said, "cannot assign")
}

func arrival(said string) string {
	name, _, _ := strings.Cut(said, "|")
	return name
}

// fields takes an answer apart.
func fields(said string) (name, from, meant string) {
	first, _, _ := strings.Cut(said, ">")
	parts := append(strings.Split(first, "|"), "", "", "")
	return parts[0], parts[1], parts[2]
}

// passAll has the proxy pass connections on, as Envoy does: what it sends must not come back to it, and with TPROXY the
// application sees the client's address.
func (w *world) passAll(t testing.TB, o options) {
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

func (w *world) pass(t testing.TB, o options, c connection, family int, by owner) {
	t.Helper()
	place := o.place(c, family)
	if place != "inbound" && place != "outbound" {
		return
	}
	p, _ := c.probe(family)
	p.wish = askThrough
	// The proxy's own calls cannot be passed on from the address that they came from.
	if o.transparent && place == "inbound" && c.who != "proxy" {
		p.wish = askTransparently
	}
	said := w.arrive(p, c.namespace(w), place)
	_, passed, _ := strings.Cut(said, ">")
	_, from, meant := fields(passed)
	want := map[string]string{"inbound": "app", "outbound": "peer"}[place]
	if arrival(passed) != want || meant != p.to.String() {
		t.Errorf("%s, IPv%d, passed on as %v: %s, want %s", c.name, 4+2*family, by, said, want)
		return
	}
	_, client, _ := fields(said)
	if p.wish == askTransparently && host(from) != host(client) {
		t.Errorf("%s, IPv%d, passed on as %v: the application sees %s, not the client %s", c.name, 4+2*family, by, from, client)
	}
}

func host(address string) netip.Addr { return netip.MustParseAddrPort(address).Addr() }

// sharePorts has an application and the agent ask the same resolver from the same port, one soon after the other: the
// kernel must not take the two for one connection.
func (w *world) sharePorts(t testing.TB, o options) {
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
				want, got := o.place(c, family), w.arrive(p, w.pod, o.place(c, family))
				if arrival(got) != want {
					t.Errorf("%s, IPv%d, from a port that %s uses too: %s, want %s", c.name, 4+2*family, strings.Join(pair[:], " and "), got, want)
				}
			}
		}
	}
}

// capturedPort is one that inbound traffic is captured by, and at which nobody listens.
const capturedPort = 20443

// fromCapturedPort has the proxy connect from a port that inbound traffic is captured by. The answers are to that port, and
// are not inbound traffic.
func (w *world) fromCapturedPort(t testing.TB, o options) {
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

// explainAll asks the explanation where the connections arrive.
func (w *world) explainAll(t testing.TB, rules *iptables.RuleSet, o options) {
	t.Helper()
	for _, c := range connections() {
		for family := range 2 {
			p, ok := c.probe(family)
			if !ok {
				continue
			}
			packet := c.packet(p, family)
			e := iptables.Explain(rules, packet)
			if got, want := explained(e, c), o.place(c, family); got != want {
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

// packet is the connection's first packet as the model sees it.
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
	if from := who[c.who].from; from != "" {
		source = from
	}
	packet.From = netip.AddrPortFrom(address(source, family), 40000)
	return packet
}

// link is where the pod meets the packet.
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
