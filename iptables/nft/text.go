package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Text returns the rule set in nft's syntax. `nft -f` with this text installs the same rules as Apply. It does not
// install the routing.
func Text(rules *iptables.RuleSet) (string, error) {
	if err := checkChains(rules); err != nil {
		return "", err
	}
	rules = iptables.Canonical(rules)
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s\ndelete table inet %[1]s\ntable inet %[1]s {\n", Table)
	for i, c := range rules.Chains {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n", chainName(c))
		if c.Hook != "" {
			at := bases[stage{c.Table, c.Hook}]
			fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy accept;\n", at.kind, strings.ToLower(string(c.Hook)), at.priority)
			if word := familyWords[rules.Families]; word != "" {
				fmt.Fprintf(&b, "\t\tmeta nfproto != %s accept comment %q\n", word, familiesID)
			}
		}
		for _, r := range c.Rules {
			writeRule(&b, c.Table, &r)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String(), nil
}

var familyWords = map[iptables.Families]string{iptables.IPv4: "ipv4", iptables.IPv6: "ipv6"}

func writeRule(b *strings.Builder, table iptables.Table, r *iptables.Rule) {
	conditions := strings.Join(words(&r.Match), " ")
	if conditions != "" {
		conditions += " "
	}
	fmt.Fprintf(b, "\t\t%scounter %s comment %q\n", conditions, verdictWords(table, r), r.ID)
	if r.Verdict.Action == iptables.TransparentProxy {
		fmt.Fprintf(b, "\t\t%scounter drop comment %q\n", conditions, r.ID+dropSuffix)
	}
}

// words returns the conditions in nft's syntax, in the order in which Apply encodes them.
func words(m *iptables.Match) []string {
	var w []string
	add := func(holds bool, format string, args ...any) {
		if holds {
			w = append(w, fmt.Sprintf(format, args...))
		}
	}
	add(familyWords[m.Families] != "", "meta nfproto %s", familyWords[m.Families])
	add(m.Protocol != iptables.AnyProtocol, "meta l4proto %s", m.Protocol)
	add(m.InInterface != "", "iifname %q", m.InInterface)
	add(m.OutInterface != "", "oifname %s%q", unless(m.NotOut), m.OutInterface)
	add(len(m.Source) > 0, "%s saddr %s%s", addressWord(m.Source), unless(m.NotSource), set(m.Source, netip.Prefix.String))
	add(len(m.Destination) > 0, "%s daddr %s%s", addressWord(m.Destination), unless(m.NotDestination), set(m.Destination, netip.Prefix.String))
	add(len(m.SourcePorts) > 0, "%s sport %s", m.Protocol, set(m.SourcePorts, iptables.PortRange.String))
	add(len(m.DestinationPorts) > 0, "%s dport %s%s", m.Protocol, unless(m.NotDestinationPorts), set(m.DestinationPorts, iptables.PortRange.String))
	add(len(m.UIDs) > 0, "meta skuid %s%s", unless(m.NotUIDs), set(m.UIDs, decimal))
	add(len(m.GIDs) > 0, "meta skgid %s%s", unless(m.NotGIDs), set(m.GIDs, decimal))
	if m.Mark != nil {
		add(true, "%s", markWords("meta mark", m.NotMark, *m.Mark))
	}
	if m.ConnMark != nil {
		add(true, "%s", markWords("ct mark", false, *m.ConnMark))
	}
	if len(m.States) > 0 {
		states := make([]string, len(m.States))
		for i, s := range m.States {
			states[i] = string(s)
		}
		add(true, "ct state %s", strings.Join(states, ","))
	}
	add(m.Reply, "ct direction reply")
	return w
}

func unless(not bool) string {
	if not {
		return "!= "
	}
	return ""
}

func decimal(n uint32) string { return fmt.Sprint(n) }

func addressWord(list []netip.Prefix) string {
	if len(list) > 0 && list[0].Addr().Is4() {
		return "ip"
	}
	return "ip6"
}

// set formats a single value without braces, and several values as an anonymous set.
func set[T any](list []T, text func(T) string) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = text(v)
	}
	if len(parts) == 1 {
		return parts[0]
	}
	slices.Sort(parts)
	return "{ " + strings.Join(slices.Compact(parts), ", ") + " }"
}

func markWords(of string, not bool, m iptables.Mark) string {
	switch {
	case m.Mask == ^uint32(0):
		return fmt.Sprintf("%s %s%#x", of, unless(not), m.Value)
	case not:
		return fmt.Sprintf("%s & %#x != %#x", of, m.Mask, m.Value)
	}
	return fmt.Sprintf("%s & %#x == %#x", of, m.Mask, m.Value)
}

func verdictWords(table iptables.Table, r *iptables.Rule) string {
	v := &r.Verdict
	switch v.Action {
	case iptables.Return, iptables.Accept, iptables.Drop:
		return strings.ToLower(string(v.Action))
	case iptables.Jump:
		return "jump " + jumpName(table, v.Chain)
	case iptables.Redirect:
		return fmt.Sprintf("redirect to :%d", v.Port)
	case iptables.TransparentProxy:
		return fmt.Sprintf("tproxy %sto :%d %s accept", tproxyFamily(&r.Match), v.Port, setMarkWords(v.Mark))
	case iptables.SetMark:
		return setMarkWords(v.Mark)
	case iptables.SaveMark:
		return "ct mark set meta mark"
	case iptables.RestoreMark:
		return "meta mark set ct mark"
	case iptables.Zone:
		return fmt.Sprintf("ct zone set %d", v.ZoneID)
	case iptables.Reject:
		if r.Match.Protocol == iptables.TCP {
			return "reject with tcp reset"
		}
		return "reject with icmpx type port-unreachable"
	}
	return strings.ToLower(string(v.Action))
}

// tproxyFamily returns the keyword "ip " or "ip6 ", which nft requires for tproxy if the rule has conditions on
// addresses, and "" otherwise.
func tproxyFamily(m *iptables.Match) string {
	switch {
	case len(m.Source) > 0:
		return addressWord(m.Source) + " "
	case len(m.Destination) > 0:
		return addressWord(m.Destination) + " "
	}
	return ""
}

func setMarkWords(m iptables.Mark) string {
	if m.Mask == ^uint32(0) {
		return fmt.Sprintf("meta mark set %#x", m.Value)
	}
	return fmt.Sprintf("meta mark set meta mark & %#x ^ %#x", ^m.Mask, m.Value&m.Mask)
}
