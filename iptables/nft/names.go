package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const (
	// Comments of rules that the model does not have.
	familiesID = "pilotfish/families"   // of the rule that lets pass what the rule set is not for
	unheard    = " (nobody listens)"    // behind the ID of the second rule of TPROXY
	maxComment = 128 - len(unheard) - 1 // nft's limit
)

// base is what the kernel has to know of a base chain beside its rules. The numbers are those of linux/netfilter.h and
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

// bases are the base chains that there can be. mangle's of OUTPUT is of kind "route", so that the kernel looks for a
// route again after a mark has been set.
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

// hooks are those of base chains, as iptables.BaseName writes them.
var hooks = map[string]iptables.Hook{
	"prerouting": iptables.Prerouting, "input": iptables.Input, "forward": iptables.Forward, "output": iptables.Output,
}

// chainName is a chain's name in the kernel, where chains of all stages share one table.
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

// modelChain is the reverse: a chain without its rules.
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

// checkChains refuses what has no place in one table.
func checkChains(rules *iptables.RuleSet) error {
	if rules.Families == 0 && len(rules.Chains) > 0 {
		return errors.New("the rule set is for no family of addresses")
	}
	seen := map[string]bool{}
	for _, c := range rules.Chains {
		name := chainName(c)
		if seen[name] {
			return fmt.Errorf("chain %s of table %s is there twice", c.Name, c.Table)
		}
		seen[name] = true
		if _, known := bases[stage{c.Table, c.Hook}]; c.Hook != "" && !known {
			return fmt.Errorf("chain %s: nothing of ours hooks %s of table %s", c.Name, c.Hook, c.Table)
		}
		if back := modelChain(name); back.Table != c.Table || back.Hook != c.Hook || back.Name != c.Name {
			return fmt.Errorf("chain %s of table %s: another chain's name would be the same in one table", c.Name, c.Table)
		}
	}
	return nil
}
