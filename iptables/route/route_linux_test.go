package route

import (
	"errors"
	"net/netip"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

var wanted = &iptables.Routing{Mark: 1337, Table: 133, Priority: 1337, LoopbackAddresses: []netip.Prefix{netip.MustParsePrefix("::6/128")}}

func show(t testing.TB, ns *testns.Namespace) string {
	t.Helper()
	var out []byte
	err := ns.Run(func() (err error) {
		out, err = exec.Command("sh", "-c", "ip rule; ip -6 rule; (ip route show table all; ip -6 route show table all) | grep -v 'proto kernel'; ip addr").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func run1(t testing.TB, ns *testns.Namespace, script string) {
	t.Helper()
	err := ns.Run(func() error { return exec.Command("sh", "-ec", script).Run() })
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
}

// read returns the routing of rules for the families.
func read(r *Routes, of iptables.Families) (*iptables.Routing, []string, error) {
	in := &iptables.Installed{Rules: &iptables.RuleSet{Families: of}}
	err := r.SetRouting(in)
	return in.Rules.Routing, in.Strange, err
}

func TestAddingTwiceAddsOnceAndUndoingLeavesNothing(t *testing.T) {
	ns := testns.New(t)
	before := show(t, ns)
	r := New(Config{NetNS: int(ns.Handle)})
	undo, err := r.Add(wanted, iptables.BothFamilies)
	if err != nil {
		t.Fatal(err)
	}
	once := show(t, ns)
	if _, err := r.Add(wanted, iptables.BothFamilies); err != nil {
		t.Fatal(err)
	}
	if twice := show(t, ns); twice != once || strings.Count(twice, "lookup 133") != 2 {
		t.Errorf("once:\n%s\ntwice:\n%s", once, twice)
	}
	got, strange, err := read(r, iptables.BothFamilies)
	if err != nil || len(strange) > 0 || !reflect.DeepEqual(got, wanted) {
		t.Errorf("read %+v %v %v", got, strange, err)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if after := show(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// An existing route or address is used, regardless of its owner. An existing rule is not, because its owner may remove
// it.
func TestEqualForeignObjectsStayAndAreNotOurs(t *testing.T) {
	ns := testns.New(t)
	run1(t, ns, `ip rule add fwmark 1337 lookup 133 priority 1337; ip route add local default dev lo table 133; ip -6 addr add ::6/128 dev lo nodad;
		ip -6 rule add fwmark 1337 lookup 133 priority 1337; ip -6 route add local default dev lo table 133`)
	before := show(t, ns)
	r := New(Config{NetNS: int(ns.Handle)})
	if _, err := r.Add(wanted, iptables.IPv4|iptables.IPv6); err != nil {
		t.Fatal(err)
	}
	got, strange, err := read(r, iptables.BothFamilies)
	if err != nil || len(strange) > 0 || !reflect.DeepEqual(got, wanted) {
		t.Errorf("read %+v %v %v", got, strange, err)
	}
	if got, _, err := read(r, iptables.IPv4); err != nil || len(got.LoopbackAddresses) > 0 {
		t.Errorf("without IPv6, read %+v %v", got, err)
	}
	during := show(t, ns)
	for line := range strings.Lines(during) {
		if strings.Contains(line, "proto 80") && !strings.Contains(line, "fwmark 0x539 lookup 133") {
			t.Errorf("added although an equal object existed: %s", line)
		}
	}
	if _, err := r.Add(wanted, iptables.BothFamilies); err != nil {
		t.Fatal(err)
	}
	if twice := show(t, ns); twice != during || strings.Count(twice, "lookup 133 proto 80") != 2 {
		t.Errorf("once:\n%s\ntwice:\n%s", during, twice)
	}
	if _, err := r.Prune(nil, 0); err != nil {
		t.Fatal(err)
	}
	if after := show(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	in := &iptables.Installed{}
	if err := r.SetRouting(in); err != nil || len(in.Strange) > 0 {
		t.Errorf("routing without rules is reported as %q %v", in.Strange, err)
	}
}

func TestOurRuleOutlivesAnEqualForeignRule(t *testing.T) {
	ns := testns.New(t)
	run1(t, ns, `ip rule add fwmark 1337 lookup 133 priority 1337`)
	r := New(Config{NetNS: int(ns.Handle)})
	undo, err := r.Add(wanted, iptables.BothFamilies)
	if err != nil {
		t.Fatal(err)
	}
	run1(t, ns, `ip rule del fwmark 1337 lookup 133 priority 1337`)
	if got, strange, err := read(r, iptables.BothFamilies); err != nil || len(strange) > 0 || !reflect.DeepEqual(got, wanted) {
		t.Errorf("read %+v %v %v\n%s", got, strange, err, show(t, ns))
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
}

func TestAForeignRouteInTheTableIsAnErrorWithItsRemedy(t *testing.T) {
	ns := testns.New(t)
	run1(t, ns, `ip route add default dev lo table 133`)
	before := show(t, ns)
	_, err := New(Config{NetNS: int(ns.Handle)}).Add(wanted, iptables.IPv4)
	if err == nil || !strings.Contains(err.Error(), "--istio-inbound-tproxy-route-table") {
		t.Errorf("error: %v", err)
	}
	if after := show(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestDisabledIPv6IsAnErrorWithItsRemedy(t *testing.T) {
	ns := testns.New(t)
	run1(t, ns, `sysctl -qw net.ipv6.conf.lo.disable_ipv6=1`)
	before := show(t, ns)
	addresses := &iptables.Routing{LoopbackAddresses: []netip.Prefix{netip.MustParsePrefix("::6/128")}}
	for _, want := range []*iptables.Routing{wanted, addresses} {
		_, err := New(Config{NetNS: int(ns.Handle)}).Add(want, iptables.BothFamilies)
		if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "lo.disable_ipv6") {
			t.Errorf("error: %v", err)
		}
		if after := show(t, ns); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	}
}

func TestFailedAddIsUndone(t *testing.T) {
	ns := testns.New(t)
	before := show(t, ns)
	injected := errors.New("injected")
	for n := 1; n <= 5; n++ {
		steps := 0
		r := New(Config{NetNS: int(ns.Handle), Inject: func(string) error {
			if steps++; steps == n {
				return injected
			}
			return nil
		}})
		if _, err := r.Add(wanted, iptables.BothFamilies); !errors.Is(err, injected) {
			t.Fatalf("step %d of %d: %v", n, steps, err)
		}
		if after := show(t, ns); after != before {
			t.Fatalf("after step %d, before:\n%s\nafter:\n%s", n, before, after)
		}
	}
}

// A kill at any step leaves nothing that cannot be found through our rules.
func TestRoutesAreNeverInstalledWithoutTheirRule(t *testing.T) {
	ns := testns.New(t)
	steps := 0
	look := func(string) error {
		steps++
		run1(t, ns, `for f in -4 -6; do [ -z "$(ip $f route show table 133 2>/dev/null)" ] || ip $f rule | grep -q 'lookup 133'; done`)
		return nil
	}
	r := New(Config{NetNS: int(ns.Handle), Inject: look})
	if _, err := r.Add(wanted, iptables.BothFamilies); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Prune(nil, 0); err != nil {
		t.Fatal(err)
	}
	if steps != 10 { // a rule and a route of each family and ::6, added and removed
		t.Errorf("%d steps", steps)
	}
}

// A route is unused after another program removed its rule. Removing everything removes it too.
func TestRouteWithoutRuleIsRemovedWithTheRest(t *testing.T) {
	ns := testns.New(t)
	before := show(t, ns)
	r := New(Config{NetNS: int(ns.Handle)})
	if _, err := r.Add(wanted, iptables.BothFamilies); err != nil {
		t.Fatal(err)
	}
	run1(t, ns, "ip rule del priority 1337; ip -6 rule del priority 1337")
	if _, err := r.Prune(nil, 0); err != nil {
		t.Fatal(err)
	}
	if after := show(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestIncompleteRoutingIsReported(t *testing.T) {
	ns := testns.New(t)
	r := New(Config{NetNS: int(ns.Handle)})
	if _, err := r.Add(wanted, iptables.BothFamilies); err != nil {
		t.Fatal(err)
	}
	run1(t, ns, `ip -6 rule del priority 1337`)
	if got, strange, err := read(r, iptables.BothFamilies); err != nil || len(strange) == 0 || got != nil && got.Mark != 0 {
		t.Errorf("read %+v %v %v", got, strange, err)
	}
	run1(t, ns, `ip route del local default table 133`)
	if _, strange, err := read(r, iptables.IPv4); err != nil || len(strange) != 1 || !strings.Contains(strange[0], "no local default route") {
		t.Errorf("strange: %v %v", strange, err)
	}
}

func TestMisroutedMarkedPacketsAreReported(t *testing.T) {
	for name, one := range map[string]struct{ script, told string }{
		"a rule before ours":                   {`ip rule add fwmark 0x539 lookup 99 priority 100; ip route add default dev eth0 table 99`, "a policy rule precedes rule 1337"},
		"a rule before ours for one address":   {`ip rule add from 10.1.0.1 lookup 99 priority 100; ip route add default dev eth0 table 99`, "a policy rule precedes rule 1337"},
		"a second route in our table":          {`ip route add 10.2.0.0/16 dev eth0 table 133`, "also has a route to 10.2.0.0/16: remove it"},
		"a rule before ours, of the family v6": {`ip -6 rule add fwmark 0x539 lookup 99 priority 100; ip -6 route add default dev eth0 table 99`, "a policy rule precedes rule 1337"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testns.New(t)
			run1(t, ns, `ip link add eth0 type veth peer name eth1; ip link set eth0 up; ip link set eth1 up; ip addr add 10.1.0.1/24 dev eth0; ip addr add fd01::1/64 dev eth0 nodad`)
			r := New(Config{NetNS: int(ns.Handle)})
			if _, err := r.Add(wanted, iptables.BothFamilies); err != nil {
				t.Fatal(err)
			}
			if got, strange, err := read(r, iptables.BothFamilies); err != nil || len(strange) > 0 || !reflect.DeepEqual(got, wanted) {
				t.Fatalf("before: %+v %v %v", got, strange, err)
			}
			run1(t, ns, one.script)
			if _, strange, err := read(r, iptables.BothFamilies); err != nil || len(strange) != 1 || !strings.Contains(strange[0], one.told) {
				t.Errorf("%q, not one with %q; %v", strange, one.told, err)
			}
		})
	}
}

// A correct state is recognised with one list of rules and one of routes; other states need further queries.
func TestCompleteRoutingNeedsNoChange(t *testing.T) {
	ns := testns.New(t)
	r := New(Config{NetNS: int(ns.Handle)})
	is := func(want *iptables.Routing, of iptables.Families) bool {
		t.Helper()
		k, err := r.open()
		if err != nil {
			t.Fatal(err)
		}
		defer k.close()
		ours, err := k.ours(unix.RTM_GETRULE, unix.RTM_GETROUTE)
		if err != nil {
			t.Fatal(err)
		}
		return isWanted(ours, want, of)
	}
	if !is(&iptables.Routing{}, 0) {
		t.Error("without objects of ours, there are further queries")
	}
	if _, err := r.Add(wanted, iptables.BothFamilies); err != nil {
		t.Fatal(err)
	}
	if !is(wanted, iptables.BothFamilies) {
		t.Error("in the wanted state, there are further queries")
	}
	for what, other := range map[string]iptables.Routing{
		"nothing": {}, "another mark": {Mark: 1338, Table: 133, Priority: 1337}, "another table": {Mark: 1337, Table: 134, Priority: 1337},
		"another priority": {Mark: 1337, Table: 133, Priority: 1336},
	} {
		if is(&other, iptables.BothFamilies) {
			t.Errorf("%s is accepted as the wanted state", what)
		}
	}
	if is(wanted, iptables.IPv4) {
		t.Error("the IPv6 routing is not recognized")
	}
	for _, more := range []string{"rule add priority 1337 fwmark 1337 lookup 133 iif lo proto 80",
		"rule add priority 1337 fwmark 1337/1337 lookup 133 proto 80", "route add 10.9.0.0/16 dev lo table 133 proto 80",
		"route add local default dev lo table 140 proto 80", "route add blackhole default metric 7 table 133 proto 80"} {
		run1(t, ns, "ip "+more)
		if is(wanted, iptables.BothFamilies) {
			t.Errorf("%s: the difference is not recognized", more)
		}
		run1(t, ns, "ip "+strings.Replace(more, " add ", " del ", 1))
	}
	if !is(wanted, iptables.BothFamilies) {
		t.Error("afterwards, there are further queries")
	}
}

// The kernel treats a rule for all marks except one as equal to the rule for that mark.
func TestRuleForAllOtherMarksIsNotOurs(t *testing.T) {
	ns := testns.New(t)
	run1(t, ns, `ip rule add not from all fwmark 1337 lookup 133 priority 1337 proto 80`)
	before := show(t, ns)
	if _, err := New(Config{NetNS: int(ns.Handle)}).Add(wanted, iptables.IPv4); !errors.Is(err, unix.EEXIST) {
		t.Errorf("error: %v", err)
	}
	if after := show(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
