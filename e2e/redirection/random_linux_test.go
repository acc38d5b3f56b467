package redirection

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// The values of random options: those that rules distinguish, and their neighbours.
var (
	somePorts = []string{"1", "22", "53", "52-54", "80", "443", "1-1024", "3306", "8080", "1-65535", "15001", "15006", "15008", "15020", "15053", "65535"}
	someCIDRs = []string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "10.60.0.0/16", "10.60.0.1/32", "10.55.0.1/32", "10.55.0.0/24", "127.0.0.0/8", "127.0.0.6/32",
		"127.0.0.1/32", "::1/128", "fd00::/8", "fd60::/16", "fd60::1/128", "fd55::1/128", "fd55::/64", "fd96::10/128", "10.96.0.10/32"}
	someIDs        = []string{"0", "11", "1000", "1337", "2000", "4294967294"}
	someInterfaces = []string{"eth0", "net1", "vif0", "eth9", "a-15-character", "lo"}
	someServers    = []string{"10.96.0.10", "fd96::10", "10.96.0.11", "127.0.0.53", "10.55.0.1", "10.60.0.1", "fd60::1"}
)

// randomFlags returns random flags; most of them are valid.
func randomFlags(r *rand.Rand) []string {
	var flags []string
	set := func(chance float64, name string, value func() string) {
		if r.Float64() < chance {
			flags = append(flags, name+"="+value())
		}
	}
	some := func(from []string, most int) func() string {
		return func() string {
			n := 1 + r.IntN(most)
			chosen := make([]string, 0, n)
			for range n {
				chosen = append(chosen, from[r.IntN(len(from))])
			}
			slices.Sort(chosen)
			return strings.Join(slices.Compact(chosen), ",")
		}
	}
	one := func(from ...string) func() string { return func() string { return from[r.IntN(len(from))] } }
	orStar := func(other func() string) func() string {
		return func() string {
			if r.IntN(2) == 0 {
				return "*"
			}
			return other()
		}
	}
	set(0.8, "istio-inbound-ports", orStar(some(somePorts, 20)))
	set(0.4, "istio-local-exclude-ports", some(somePorts, 4))
	set(0.8, "istio-service-cidr", orStar(some(someCIDRs, 6)))
	set(0.4, "istio-service-exclude-cidr", some(someCIDRs, 4))
	set(0.3, "istio-outbound-ports", some(somePorts, 4))
	set(0.3, "istio-local-outbound-ports-exclude", some(somePorts, 4))
	set(0.3, "istio-exclude-interfaces", some(someInterfaces, 3))
	set(0.3, "kube-virt-interfaces", some(someInterfaces, 2))
	set(0.4, "proxy-uid", some(someIDs, 3))
	set(0.4, "proxy-gid", some(someIDs, 3))
	set(0.3, "ISTIO_OUTBOUND_OWNER_GROUPS", orStar(some(someIDs, 5)))
	set(0.3, "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", some(someIDs, 3))
	set(0.5, "redirect-dns", one("true"))
	set(0.5, "capture-all-dns", one("true"))
	set(0.5, "dns-servers", some(someServers, 4))
	set(0.3, "drop-invalid", one("true"))
	set(0.5, "istio-inbound-interception-mode", one("TPROXY", "TPROXY", "REDIRECT"))
	set(0.2, "istio-inbound-tproxy-mark", one("1", "0x777", "4294967295"))
	set(0.2, "istio-inbound-tproxy-route-table", one("1", "200", "100000"))
	set(0.4, "dual-stack", one("true"))
	set(0.4, "ipv6", one("capture", "reject", "pass", "auto"))
	set(0.2, "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", one("127.0.0.0/8", "127.0.0.1/32", "127.0.0.0/30"))
	set(0.3, "inbound-tunnel-port", one("15108", "15008"))
	set(0.2, "dns-port", one("15153"))
	set(0.5, "DNS_PROXY_ADDR", one(":15053", "0.0.0.0:15053", "localhost:15053"))
	return flags
}

// proxies returns the proxy's users and groups in the options, each as a separate owner.
func proxies(o iptables.Options) (all []owner) {
	for _, uid := range o.ProxyUIDs {
		all = append(all, owner{int(uid), 54321})
	}
	for _, gid := range o.ProxyGIDs {
		all = append(all, owner{54321, int(gid)})
	}
	return all
}

// random applies random options, and reports whether they were valid. For all options, the kernel must accept the rules
// and return the same ones, no packet of the proxy may be redirected back to it, and connections must arrive as
// explained.
func (w *testNetwork) random(t *testing.T, b iptables.Backend, seed uint64) bool {
	r := rand.New(rand.NewPCG(seed, 1))
	flags := randomFlags(r)
	o := iptables.DefaultOptions()
	for _, f := range flags {
		name, value, _ := strings.Cut(f, "=")
		if o.Set(name, value, iptables.Names{}) != nil {
			return false
		}
	}
	rules, err := iptables.Compile(o)
	if err != nil {
		return false
	}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d: %s", seed, strings.Join(flags, " "))
		}
	}()
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Errorf("seed %d: the kernel refuses: %v", seed, err)
		return true
	}
	in, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := iptables.Diff(rules, in); len(diff) > 0 || len(in.Strange) > 0 {
		t.Errorf("seed %d: read back, it differs: %s", seed, iptables.Summary(diff))
	}
	if again := iptables.Canonical(in.Rules); !reflect.DeepEqual(again, iptables.Canonical(rules)) {
		t.Errorf("seed %d: read back, it is worded in another way:\n%+v\n%+v", seed, again, iptables.Canonical(rules))
	}
	w.flushConntrack(t)
	for _, by := range proxies(o) {
		for family := range 2 {
			w.checkNoLoop(t, o, rules, by, family)
		}
	}
	w.checkRandomConnections(t, r, o, rules)
	return true
}

// checkNoLoop makes the proxy's connections: to peers, to resolvers, and to the application.
func (w *testNetwork) checkNoLoop(t *testing.T, o iptables.Options, rules *iptables.RuleSet, by owner, family int) {
	t.Helper()
	check := func(what string, p probe, want string) {
		t.Helper()
		p.owner = by
		if got := w.arrive(p, w.pod, want); arrival(got) != want {
			t.Errorf("as %v, %s, IPv%d: %s, want %s", by, what, 4+2*family, got, want)
		}
	}
	for _, to := range []string{"mesh:80", "other:3306", "resolver:53", "mesh:15008", "outside:22"} {
		name, port, _ := strings.Cut(to, ":")
		var number int
		_, _ = fmt.Sscan(port, &number)
		check(to, probe{network: "tcp", to: netip.AddrPortFrom(address(name, family), uint16(number))}, "peer")
	}
	for _, to := range []string{"resolver", "resolver2"} {
		check(to+" by UDP", probe{network: "udp", to: netip.AddrPortFrom(address(to, family), 53)}, "peer")
	}
	if rules.Routing == nil && family == 1 || family == 1 && !slices.Contains(rules.Routing.LoopbackAddresses, netip.MustParsePrefix("::6/128")) {
		return // the proxy does not handle IPv6 then
	}
	own := netip.AddrPortFrom(address("own", family), 80)
	check("passed on", probe{network: "tcp", from: netip.AddrPortFrom(address("pass", family), 0), to: own}, "app")
	// Clients do not connect through an excluded interface, and replies to them do not leave through one.
	if rules.Routing != nil && rules.Routing.Mark != 0 && !slices.Contains(o.ExcludeInterfaces, "eth0") {
		check("passed on for a client", probe{network: "tcp", from: netip.AddrPortFrom(address("far", family), 0), to: own, mark: int(o.TProxyMark)}, "app")
	}
}

func TestRandomOptionsNeitherFailNorLoop(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestNetwork(t)
			w.serve(t)
			b := backend(t, w.pod)
			for seed, allowed := uint64(0), 0; allowed < 25; seed++ {
				if w.random(t, b, seed) {
					allowed++
				}
				if seed == 1000 {
					t.Fatalf("of %d random sets of options but %d were allowed", seed, allowed)
				}
			}
		})
	}
}

func FuzzOptionsNeitherFailNorLoop(f *testing.F) {
	type place struct {
		*testNetwork
		iptables.Backend
	}
	var places []place
	for _, name := range []string{"nftables", "iptables-nft", "iptables-legacy"} {
		w := newTestNetwork(f)
		w.serve(f)
		places = append(places, place{w, backends[name](f, w.pod)})
	}
	for seed := range uint64(4) {
		f.Add(1000+seed, byte(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, which byte) {
		at := places[int(which)%len(places)]
		if !at.random(t, at.Backend, seed) {
			t.Skip()
		}
	})
}
