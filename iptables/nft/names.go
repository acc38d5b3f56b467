package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const (
	// Texts in comments of those kernel rules that are not in the model.
	familiesID = "pilotfish/families"      // comment of the rule that accepts families to which the rule set does not apply
	dropSuffix = " (nobody listens)"       // appended to the ID of the second rule of TPROXY
	maxComment = 128 - len(dropSuffix) - 1 // the maximum length in nft, less the suffix and a zero byte
)

// base contains the properties of a base chain: type, hook and priority. The numbers are from linux/netfilter.h and
// linux/netfilter_ipv4.h.
type base struct {
	kind     string
	hook     uint32
	priority int32
}

type stage struct {
	table iptables.Table
	hook  iptables.Hook
}

// bases lists the supported base chains. The OUTPUT chain of mangle has type "route", so that the kernel repeats the route
// lookup after a rule sets a mark.
var bases = map[stage]base{
	{iptables.Raw, iptables.Prerouting}:    {"filter", 0, -300},
	{iptables.Raw, iptables.Output}:        {"filter", 3, -300},
	{iptables.Mangle, iptables.Prerouting}: {"filter", 0, -150},
	{iptables.Mangle, iptables.Output}:     {"route", 3, -150},
	{iptables.NAT, iptables.Prerouting}:    {"nat", 0, -100},
	{iptables.NAT, iptables.Output}:        {"nat", 3, -100},
	{iptables.Filter, iptables.Input}:      {"filter", 1, 0},
	{iptables.Filter, iptables.Forward}:    {"filter", 2, 0},
	{iptables.Filter, iptables.Output}:     {"filter", 3, 0},
}

// hooks maps the hook part of a name that iptables.BaseName returns to the hook.
var hooks = map[string]iptables.Hook{
	"prerouting": iptables.Prerouting, "input": iptables.Input, "forward": iptables.Forward, "output": iptables.Output,
}

// chainName returns a chain's name in the kernel. The chains of all tables of the model are in one nftables table, so the
// name includes the model's table.
func chainName(c iptables.Chain) string {
	if c.Hook != "" {
		return iptables.BaseName(c.Table, c.Hook)
	}
	return jumpName(c.Table, c.Name)
}

func jumpName(table iptables.Table, name string) string {
	if table == iptables.NAT {
		return name
	}
	return string(table) + "_" + name
}

// modelChain is the inverse of chainName. It returns a chain of the model, without rules.
func modelChain(kernel string) iptables.Chain {
	if prefix, after, found := strings.Cut(kernel, "_"); found {
		t := iptables.Table(prefix)
		if hook, known := hooks[after]; known {
			if _, known := bases[stage{t, hook}]; known {
				return iptables.Chain{Table: t, Name: kernel, Hook: hook}
			}
		}
		switch t {
		case iptables.Raw, iptables.Mangle, iptables.Filter:
			return iptables.Chain{Table: t, Name: after}
		}
	}
	return iptables.Chain{Table: iptables.NAT, Name: kernel}
}

// checkChains returns an error if the rule set's chains cannot be installed in one nftables table.
func checkChains(rules *iptables.RuleSet) error {
	if rules.Families == 0 && len(rules.Chains) > 0 {
		return errors.New("the rule set has no address family")
	}
	seen := map[string]bool{}
	for _, c := range rules.Chains {
		name := chainName(c)
		if seen[name] {
			return fmt.Errorf("chain %s of table %s appears twice", c.Name, c.Table)
		}
		seen[name] = true
		if _, known := bases[stage{c.Table, c.Hook}]; c.Hook != "" && !known {
			return fmt.Errorf("chain %s: hook %s is not supported in table %s", c.Name, c.Hook, c.Table)
		}
		if back := modelChain(name); back.Table != c.Table || back.Hook != c.Hook || back.Name != c.Name {
			return fmt.Errorf("chain %s of table %s: another chain has the same name in nftables", c.Name, c.Table)
		}
	}
	return nil
}
