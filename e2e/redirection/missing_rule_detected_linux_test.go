package redirection

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// coveredElsewhere lists rules, by table and ID, whose loss no connection of this package shows, and the test that covers them
// or the reason.
var coveredElsewhere = map[string]string{
	"mangle invalid/drop":                           "TestInvalidPacketsAreResetUnlessDropped",
	"mangle hook/mangle-invalid":                    "TestInvalidPacketsAreResetUnlessDropped",
	"mangle inbound/all-established":                existingConnectionsTest,
	"mangle inbound/port-80-established":            existingConnectionsTest,
	"mangle inbound/port-8080-established":          existingConnectionsTest,
	"mangle inbound/port-20443-established":         existingConnectionsTest,
	"mangle tproxy/established":                     existingConnectionsTest,
	"mangle inbound/port-20443":                     "nobody listens there; inbound/port-80 tells",
	"nat inbound/port-15008":                        "the tunnel's port was let go before",
	"nat outbound/exclude-cidr-10.57.0.0/16":        "applications have nothing to ask there; that of 10.70.0.0/16 tells",
	"filter refuse/outbound/exclude-cidr-fd57::/16": "applications have nothing to ask there; nat outbound/exclude-cidr-fd70::/16 tells",
	"raw zone/virtual-vif0":                         "TestVirtualMachineGetsDNSAnswers, where the machine has the pod's address",
	"raw zone/answer-of-proxy-uid-2000":             "the agent that answers is 1337, whose rule tells",
}

// existingConnectionsTest names the test for connections that are older than the rules.
const existingConnectionsTest = "TestExistingConnectionsSurviveCapture"

// noClient is the reason for rules of a proxy as which no client connects; the rules of 1337 and 2000 are tested instead.
const noClient = "id-3000"

// allRules removes every rule of every set of options, which needs minutes; otherwise each rule is removed once.
const allRules = "PILOTFISH_TEST_ALL_RULES"

// testRecorder implements testing.TB; the first failure stops the function under test.
type testRecorder struct {
	testing.TB
	failure string
}

type stopOnFailure struct{}

func (n *testRecorder) Helper() {}

func (n *testRecorder) Errorf(format string, args ...any) {
	n.failure = fmt.Sprintf(format, args...)
	panic(stopOnFailure{})
}

// firstFailure returns the first failure that f reports, or "".
func firstFailure(t testing.TB, f func(testing.TB)) (failure string) {
	n := &testRecorder{TB: t}
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(stopOnFailure); !is {
				panic(r)
			}
			failure = n.failure
		}
	}()
	f(n)
	return ""
}

// withoutRule returns a copy of the rule set that lacks one rule.
func withoutRule(rules *iptables.RuleSet, chain, rule int) *iptables.RuleSet {
	out := *rules
	out.Chains = slices.Clone(rules.Chains)
	c := &out.Chains[chain]
	c.Rules = slices.Delete(slices.Clone(c.Rules), rule, rule+1)
	return &out
}

// TestEveryMissingRuleIsDetected removes rules one by one, and makes connections until one arrives elsewhere. It
// proves that the table covers every rule.
func TestEveryMissingRuleIsDetected(t *testing.T) {
	t.Parallel()
	w := newTestNetwork(t)
	w.noRetry = true
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
				if done[id] && os.Getenv(allRules) == "" || coveredElsewhere[id] != "" || strings.Contains(id, noClient) {
					continue
				}
				left := withoutRule(rules, i, j)
				if err := b.Apply(t.Context(), left); err != nil {
					t.Fatalf("%s: without %s: %v", o.name, id, err)
				}
				failure := w.findDifference(t, left, o)
				if failure == "" {
					failure = firstFailure(t, func(t testing.TB) { w.checkConnections(t, parsed, o) })
				}
				done[id] = done[id] || failure != ""
				if failure == "" {
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

// findDifference makes the first connection that arrives elsewhere according to the explanation, and reports where it
// arrived.
func (w *testNetwork) findDifference(t testing.TB, rules *iptables.RuleSet, o options) string {
	t.Helper()
	w.flushConntrack(t)
	for _, c := range connections() {
		for family := range 2 {
			p, ok := c.probe(family)
			if !ok {
				continue
			}
			got := explained(iptables.Explain(rules, c.packet(p, family)), c)
			if got == o.expectedPlace(c, family) {
				continue
			}
			if said := arrival(w.arrive(p, c.namespace(w), o.expectedPlace(c, family))); said != o.expectedPlace(c, family) {
				return c.name + " arrived at " + said
			}
		}
	}
	return ""
}
