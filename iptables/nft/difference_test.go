package nft

import (
	"encoding/json"
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// difference shows the first line in which two rule sets differ.
func difference(got, want *iptables.RuleSet) string {
	g, w := lines(got), lines(want)
	for i := 0; i < max(len(g), len(w)); i++ {
		if a, z := lineAt(g, i), lineAt(w, i); a != z {
			return fmt.Sprintf("got  %s\nwant %s", a, z)
		}
	}
	return "no difference"
}

func lineAt(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return "(nothing)"
}

func lines(r *iptables.RuleSet) []string {
	if r == nil {
		return []string{"no rule set"}
	}
	text, _ := json.Marshal(r.Routing)
	out := []string{fmt.Sprintf("families %d, routing %s", r.Families, text)}
	for _, c := range r.Chains {
		out = append(out, fmt.Sprintf("chain %s %s %s", c.Table, c.Name, c.Hook))
		for _, rule := range c.Rules {
			j, _ := json.Marshal(rule)
			out = append(out, string(j))
		}
	}
	return out
}
