package redirection

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// clients lists the clients: the namespace or role, the owner of the socket, and the source address if it matters.
var clients = map[string]struct {
	owner owner
	from  string
}{
	"app":     {owner{1000, 1000}, ""},
	"proxy":   {owner{1337, 1337}, ""},
	"uid":     {owner{1337, 1000}, ""}, // a proxy matched by its user only
	"gid":     {owner{0, 1337}, ""},    // a proxy matched by its group only
	"second":  {owner{2000, 2000}, ""}, // another proxy, if the options name it
	"group":   {owner{1000, 11}, ""},
	"pass":    {owner{1337, 1337}, "pass"}, // the proxy when it forwards an inbound connection
	"apppass": {owner{1000, 1000}, "pass"},
	"peer":    {owner{}, ""},
	"far":     {owner{}, "far"},
	"round":   {owner{}, "through1"}, // packets arrive through one interface, and replies leave through another
	"machine": {owner{}, ""},
}

// table lists where each connection arrives: without rules, with rules but no capture option, and with "*" for inbound
// and outbound. It is the contract's behaviour without its defects.
const table = `
app tcp mesh:80         peer      peer      outbound
app tcp mesh:443        peer      peer      outbound
app tcp mesh:3306       peer      peer      outbound
app tcp mesh:22         peer      peer      outbound
app tcp mesh:15008      peer      peer      outbound
app tcp other:80        peer      peer      outbound
app tcp other:3306      peer      peer      outbound
app tcp outside:80      peer      peer      outbound
app tcp through1:80     peer      peer      outbound
app tcp own:80          app       app       app
app tcp own:15008       tunnel    tunnel    tunnel
app tcp own:53          app       app       app
app tcp net1:80         app       app       app
app tcp localhost:80    app       app       app
app tcp localhost:53    app       app       app
app tcp loop5:80        app       app       app
app tcp loop5:53        app       app       app
app tcp resolver:53     peer      peer      outbound
app tcp resolver2:53    peer      peer      outbound
app udp resolver:53     peer      peer      peer
app udp resolver2:53    peer      peer      peer
app udp mesh:9999       peer      peer      peer
app udp own:9999        app       app       app
app udp own:53          app       app       app
app udp localhost:9999  app       app       app
app udp localhost:53    app       app       app
proxy tcp mesh:80       peer      peer      peer
proxy tcp mesh:15008    peer      peer      peer
proxy tcp mesh:3306     peer      peer      peer
proxy tcp through1:80   peer      peer      peer
proxy tcp resolver:53   peer      peer      peer
proxy tcp own:80        app       inbound   inbound
proxy tcp own:8080      app       inbound   inbound
proxy tcp own:15008     tunnel    tunnel    tunnel
proxy tcp own:15108     tunnel    inbound   inbound
proxy tcp own:53        app       inbound   inbound
proxy tcp net1:80       app       inbound   inbound
proxy tcp localhost:80  app       app       app
proxy tcp localhost:53  app       app       app
proxy tcp loop5:80      app       inbound   inbound
proxy udp resolver:53   peer      peer      peer
proxy udp resolver2:53  peer      peer      peer
proxy udp mesh:9999     peer      peer      peer
proxy udp own:9999      app       app       app
proxy udp own:53        app       app       app
uid tcp mesh:80         peer      peer      peer
uid tcp resolver:53     peer      peer      peer
uid tcp own:80          app       inbound   inbound
uid tcp own:15008       tunnel    tunnel    tunnel
uid tcp own:53          app       inbound   inbound
uid tcp localhost:80    app       app       app
uid udp resolver:53     peer      peer      peer
gid tcp mesh:80         peer      peer      peer
gid tcp resolver:53     peer      peer      peer
gid tcp own:80          app       inbound   inbound
gid tcp own:15008       tunnel    tunnel    tunnel
gid tcp own:53          app       inbound   inbound
gid tcp localhost:80    app       app       app
gid udp resolver:53     peer      peer      peer
second tcp mesh:80      peer      peer      outbound
second tcp resolver:53  peer      peer      outbound
second tcp own:80       app       app       app
second tcp own:15008    tunnel    tunnel    tunnel
second tcp own:53       app       app       app
second tcp localhost:80 app       app       app
second udp resolver:53  peer      peer      peer
group tcp mesh:80       peer      peer      outbound
group tcp resolver:53   peer      peer      outbound
group tcp own:80        app       app       app
group tcp own:53        app       app       app
group udp resolver:53   peer      peer      peer
pass tcp own:80         app       app       app
apppass tcp own:80      app       app       app
peer tcp own:80         app       app       inbound
peer tcp own:443        app       app       inbound
peer tcp own:8080       app       app       inbound
peer tcp own:9999       app       app       inbound
peer tcp own:22         app       app       inbound
peer tcp own:53         app       app       inbound
peer tcp own:15008      tunnel    tunnel    tunnel
peer tcp own:15108      tunnel    tunnel    inbound
peer tcp own:15001      outbound  outbound  inbound
peer tcp own:15020      app       app       inbound
peer tcp own:15021      app       app       inbound
peer tcp own:15090      app       app       inbound
peer tcp net1:80        app       app       inbound
peer udp own:9999       app       app       app
peer udp own:53         app       app       app
far tcp own:80          app       app       inbound
round tcp own:80        app       app       inbound
machine tcp mesh:80     peer      peer      inbound
machine tcp mesh:3306   peer      peer      inbound
machine tcp other:80    peer      peer      inbound
machine tcp virtual:80  app       app       inbound
machine udp mesh:9999   peer      peer      peer
machine tcp resolver:53 peer      peer      inbound
machine udp resolver:53 peer      peer      peer
machine udp resolver2:53 peer     peer      peer
`

// connection is a row of the table.
type connection struct {
	name, who, network string
	to                 string
	port               int
	natural, none, all string
}

func connections() []connection {
	var out []connection
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		w := strings.Fields(line)
		c := connection{name: strings.Join(w[:3], " "), who: w[0], network: w[1], natural: w[3], none: w[4], all: w[5]}
		to, port, _ := strings.Cut(w[2], ":")
		c.to = to
		c.port, _ = strconv.Atoi(port)
		out = append(out, c)
	}
	return out
}

// inbound reports whether the connection arrives over a link.
func (c connection) inbound() bool { return c.namespaceName() != "pod" }

func (c connection) namespaceName() string {
	switch c.who {
	case "peer", "far", "round":
		return "peer"
	case "machine":
		return "machine"
	}
	return "pod"
}

func (c connection) namespace(w *testNetwork) *testns.Namespace {
	return map[string]*testns.Namespace{"pod": w.pod, "peer": w.peer, "machine": w.machine}[c.namespaceName()]
}

// probe returns the connection for an address family, or false if the family has none.
func (c connection) probe(family int) (probe, bool) {
	to := address(c.to, family)
	w := clients[c.who]
	p := probe{network: c.network, to: netip.AddrPortFrom(to, uint16(c.port)), owner: w.owner}
	if w.from != "" {
		p.from = netip.AddrPortFrom(address(w.from, family), 0)
	}
	return p, to.IsValid()
}

// options is a set of options, and the places where connections arrive with it.
type options struct {
	name  string
	flags []string // name=value
	// in and out select the table's last column for inbound and outbound connections; otherwise the column before
	// applies.
	in, out bool
	// exceptions lists exceptions as alternating patterns and places; the last match applies. A pattern may begin with "v4 "
	// or "v6 ".
	exceptions []string
	// ipv6 is the treatment of IPv6: like IPv4 (""), "pass" or "refuse".
	ipv6 string
	// transparent selects TPROXY.
	transparent bool
}

// expectedPlace returns where the connection should arrive.
func (o options) expectedPlace(c connection, family int) string {
	expected := c.none
	if c.inbound() && o.in || !c.inbound() && o.out {
		expected = c.all
	}
	expected = o.override("", c, expected)
	if family == 0 {
		return o.override("v4 ", c, expected)
	}
	switch {
	case o.ipv6 == "pass":
		expected = c.natural
	case o.ipv6 == "refuse" && expected != c.natural && !c.isProxy():
		expected = "refused"
	case o.ipv6 == "refuse":
		expected = c.natural
	}
	return o.override("v6 ", c, expected)
}

// override applies the exceptions whose patterns have the prefix.
func (o options) override(prefix string, c connection, place string) string {
	for i := 0; i < len(o.exceptions); i += 2 {
		pattern, ok := strings.CutPrefix(o.exceptions[i], prefix)
		if !ok {
			continue
		}
		if ok, _ := path.Match(pattern, c.name); ok {
			place = o.exceptions[i+1]
		}
	}
	return place
}

func (c connection) isProxy() bool {
	return c.who == "proxy" || c.who == "uid" || c.who == "gid" || c.who == "pass"
}

func (c connection) String() string { return fmt.Sprintf("%s (%s)", c.name, c.natural) }
