package redirection

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// elsewhere are rules, by table and ID, that no connection here tells of, and why that is so.
var elsewhere = map[string]string{
	"mangle invalid/drop":                           "TestInvalidPacketsAreAnsweredOnlyWhereTheyAreNotDropped",
	"mangle hook/mangle-invalid":                    "TestInvalidPacketsAreAnsweredOnlyWhereTheyAreNotDropped",
	"mangle inbound/all-established":                goesOn,
	"mangle inbound/port-80-established":            goesOn,
	"mangle inbound/port-8080-established":          goesOn,
	"mangle inbound/port-20443-established":         goesOn,
	"mangle tproxy/established":                     goesOn,
	"mangle inbound/port-20443":                     "nobody listens there; inbound/port-80 tells",
	"nat inbound/port-15008":                        "the tunnel's port was let go before",
	"nat outbound/exclude-cidr-10.57.0.0/16":        "applications have nothing to ask there; that of 10.70.0.0/16 tells",
	"filter refuse/outbound/exclude-cidr-fd57::/16": "applications have nothing to ask there; nat outbound/exclude-cidr-fd70::/16 tells",
	"raw zone/virtual-vif0":                         "TestVirtualMachineBehindAPodGetsAnswersToItsDNSQuestions, where the machine has the pod's address",
	"raw zone/answer-of-proxy-uid-2000":             "the agent that answers is 1337, whose rule tells",
}

// goesOn is what tells of connections that are older than the rules.
const goesOn = "TestWhatTheApplicationAnsweredBeforeGoesOnWhenItsPortIsCaptured"

// nobody is the proxy in some sets of options, but none of those who connect: the rules of 1337 and 2000 tell.
const nobody = "id-3000"

// allRules has every rule of every set of options taken away, which takes minutes; otherwise each rule is taken away once.
const allRules = "PILOTFISH_TEST_ALL_RULES"

// notice takes the place of a test: the first complaint ends what complains.
type notice struct {
	testing.TB
	told string
}

type enough struct{}

func (n *notice) Helper() {}

func (n *notice) Errorf(format string, args ...any) {
	n.told = fmt.Sprintf(format, args...)
	panic(enough{})
}

// complaint is the first that f has, "" for none.
func complaint(t testing.TB, f func(testing.TB)) (told string) {
	n := &notice{TB: t}
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(enough); !is {
				panic(r)
			}
			told = n.told
		}
	}()
	f(n)
	return ""
}

// without is the rule set less one rule.
func without(rules *iptables.RuleSet, chain, rule int) *iptables.RuleSet {
	out := *rules
	out.Chains = slices.Clone(rules.Chains)
	c := &out.Chains[chain]
	c.Rules = slices.Delete(slices.Clone(c.Rules), rule, rule+1)
	return &out
}

// TestEveryRuleThatIsMissingIsNoticed takes rules away one by one, and makes connections until one arrives elsewhere.
// Otherwise the table would prove less than it seems to.
func TestEveryRuleThatIsMissingIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hasty = true
	w.serve(t)
	b := backends["nftables"](t, w.pod)
	done := map[string]bool{}
	for _, o := range sets {
		parsed := parse(t, o.flags)
		rules, err := iptables.Compile(parsed)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range rules.Chains {
			for j, r := range c.Rules {
				id := string(c.Table) + " " + r.ID
				if done[id] && os.Getenv(allRules) == "" || elsewhere[id] != "" || strings.Contains(id, nobody) {
					continue
				}
				left := without(rules, i, j)
				if err := b.Apply(t.Context(), left); err != nil {
					t.Fatalf("%s: without %s: %v", o.name, id, err)
				}
				told := w.firstToDiffer(t, left, o)
				if told == "" {
					told = complaint(t, func(t testing.TB) { w.makeAll(t, parsed, o) })
				}
				done[id] = done[id] || told != ""
				if told == "" {
					t.Logf("%s: nothing tells that %s is missing", o.name, id)
				}
			}
		}
	}
	for id, ok := range done {
		if !ok {
			t.Errorf("in no set of options a connection tells that %s is missing", id)
		}
	}
}

// firstToDiffer makes the first connection of which the explanation says that it arrives elsewhere, and tells where it
// did.
func (w *world) firstToDiffer(t testing.TB, rules *iptables.RuleSet, o options) string {
	t.Helper()
	w.forget(t)
	for _, c := range connections() {
		for family := range 2 {
			p, ok := c.probe(family)
			if !ok {
				continue
			}
			got := explained(iptables.Explain(rules, c.packet(p, family)), c)
			if got == o.place(c, family) {
				continue
			}
			if said := arrival(w.arrive(p, c.namespace(w), o.place(c, family))); said != o.place(c, family) {
				return c.name + " arrived at " + said
			}
		}
	}
	return ""
}
