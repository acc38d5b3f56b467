package xtables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const (
	// ownPrefix is the name prefix of our chains that do not exist in Istio.
	ownPrefix = "PILOTFISH_"
	// contractPrefix is the name prefix of our chains that also exist in Istio.
	contractPrefix = "ISTIO_"
	// jumpComment is the prefix of the comment of our jump in a built-in chain. The name of the target chain in the
	// model follows the prefix.
	jumpComment = "pilotfish "
)

// tables lists the tables in the order in which a packet traverses them.
var tables = []iptables.Table{iptables.Raw, iptables.Mangle, iptables.NAT, iptables.Filter}

// families lists the address families. Each has its own iptables binaries.
var families = []iptables.Families{iptables.IPv4, iptables.IPv6}

// tableText is the part of a rule set for one table and family, in iptables-restore syntax.
type tableText struct {
	table  iptables.Table
	chains []chainText
}

type chainText struct {
	name  string
	hook  iptables.Hook
	model string   // the chain's name in the model
	rules []string // rules without "-A chain"
}

// Text returns the rules for family in iptables-restore syntax, as Apply installs it in a namespace that has no rules.
// If the rule set does not apply to the family, it returns "".
func Text(rules *iptables.RuleSet, family iptables.Families) (string, error) {
	texts, err := render(rules, family)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, t := range texts {
		b.WriteString(transaction(t.table, ownRules{}, wantedPart(&t, false)))
	}
	return b.String(), nil
}

func render(rules *iptables.RuleSet, family iptables.Families) ([]tableText, error) {
	if rules == nil || rules.Families&family == 0 {
		return nil, nil
	}
	var out []tableText
	for _, table := range tables {
		t := tableText{table: table}
		for _, c := range rules.Chains {
			if c.Table != table {
				continue
			}
			text, err := renderChain(c, family)
			if err != nil {
				return nil, err
			}
			t.chains = append(t.chains, text)
		}
		if slices.ContainsFunc(t.chains, func(c chainText) bool { return len(c.rules) > 0 }) {
			out = append(out, t)
		}
	}
	return out, nil
}

func renderChain(c iptables.Chain, family iptables.Families) (chainText, error) {
	text := chainText{name: kernelName(c.Name, c.Hook), hook: c.Hook, model: c.Name}
	for _, r := range c.Rules {
		lines, err := renderRule(r, family)
		if err != nil {
			return text, fmt.Errorf("rule %s of chain %s: %w", r.ID, c.Name, err)
		}
		text.rules = append(text.rules, lines...)
	}
	return text, nil
}

// kernelName returns the name of a chain of the model in the kernel. For a base chain, it is the name of our chain to which
// the built-in chain jumps.
func kernelName(model string, hook iptables.Hook) string {
	switch {
	case hook != "":
		return ownPrefix + string(hook)
	case strings.HasPrefix(model, contractPrefix):
		return model
	}
	return ownPrefix + model
}

// modelName is the inverse of kernelName for chains that are not base chains.
func modelName(kernel string) string { return strings.TrimPrefix(kernel, ownPrefix) }

func ours(chain string) bool {
	return strings.HasPrefix(chain, ownPrefix) || strings.HasPrefix(chain, contractPrefix)
}

// renderRule returns the iptables rules for a rule of the model. There are several if iptables cannot express alternatives
// in one rule.
func renderRule(r iptables.Rule, family iptables.Families) ([]string, error) {
	if !holdsFor(r.Match, family) {
		return nil, nil
	}
	target, err := renderVerdict(r, family)
	if err != nil {
		return nil, err
	}
	lines := []string{""}
	for _, alternatives := range renderMatch(r.Match) {
		lines = product(lines, alternatives)
	}
	for i := range lines {
		if r.ID != "" {
			lines[i] += " -m comment --comment " + quote(r.ID)
		}
		lines[i] = strings.TrimPrefix(lines[i]+" "+target, " ")
	}
	return lines, nil
}

// holdsFor reports whether the match can apply to packets of the family.
func holdsFor(m iptables.Match, family iptables.Families) bool {
	if m.Families != 0 && m.Families&family == 0 {
		return false
	}
	for _, p := range slices.Concat(m.Source, m.Destination) {
		if familyOf(p.Addr()) != family {
			return false
		}
	}
	return true
}

func familyOf(a netip.Addr) iptables.Families {
	if a.Is4() {
		return iptables.IPv4
	}
	return iptables.IPv6
}

func product(lines, alternatives []string) []string {
	out := make([]string, 0, len(lines)*len(alternatives))
	for _, l := range lines {
		for _, a := range alternatives {
			out = append(out, l+a)
		}
	}
	return out
}

// renderMatch returns a list of conditions, all of which must be met. Each condition is a list of alternatives, one of
// which must be met.
func renderMatch(m iptables.Match) [][]string {
	var out [][]string
	add := func(alternatives ...string) {
		if len(alternatives) > 0 {
			out = append(out, alternatives)
		}
	}
	add(renderAddresses("-s", "--src-range", m.Source, m.NotSource)...)
	add(renderAddresses("-d", "--dst-range", m.Destination, m.NotDestination)...)
	if m.InInterface != "" {
		add(" -i " + m.InInterface)
	}
	if m.OutInterface != "" {
		add(not(m.NotOut) + " -o " + m.OutInterface)
	}
	if m.Protocol != iptables.AnyProtocol {
		add(" -p " + string(m.Protocol))
	}
	add(renderPorts(m.Protocol, "sport", m.SourcePorts, false)...)
	add(renderPorts(m.Protocol, "dport", m.DestinationPorts, m.NotDestinationPorts)...)
	add(renderOwners("--uid-owner", m.UIDs, m.NotUIDs)...)
	add(renderOwners("--gid-owner", m.GIDs, m.NotGIDs)...)
	if m.Mark != nil {
		add(" -m mark" + not(m.NotMark) + " --mark " + renderMark(*m.Mark))
	}
	if m.ConnMark != nil {
		add(" -m connmark --mark " + renderMark(*m.ConnMark))
	}
	if len(m.States) > 0 {
		add(" -m conntrack --ctstate " + renderStates(m.States))
	}
	if m.Reply {
		add(" -m conntrack --ctdir REPLY")
	}
	return out
}

func not(negated bool) string {
	if negated {
		return " !"
	}
	return ""
}

// renderAddresses returns the alternatives of an address condition. For "none of several prefixes", it uses the match
// iprange, because iptables accepts only one address for source and destination.
func renderAddresses(one, span string, prefixes []netip.Prefix, negated bool) []string {
	if negated && len(prefixes) > 1 {
		all := ""
		for _, p := range prefixes {
			all += " -m iprange ! " + span + " " + p.Masked().Addr().String() + "-" + lastAddress(p).String()
		}
		return []string{all}
	}
	out := make([]string, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, not(negated)+" "+one+" "+p.String())
	}
	return out
}

// lastAddress returns the last address of a prefix.
func lastAddress(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// maxMultiport is the maximum number of ports in one multiport match. A range counts as two ports.
const maxMultiport = 15

func renderPorts(protocol iptables.Protocol, option string, ports []iptables.PortRange, negated bool) []string {
	if len(ports) == 0 {
		return nil
	}
	if len(ports) == 1 {
		return []string{" -m " + string(protocol) + not(negated) + " --" + option + " " + renderRange(ports[0])}
	}
	var out []string
	for _, chunk := range chunks(ports) {
		out = append(out, " -m multiport"+not(negated)+" --"+option+"s "+chunk)
	}
	if negated {
		return []string{strings.Join(out, "")}
	}
	return out
}

func chunks(ports []iptables.PortRange) []string {
	var out, chunk []string
	room := maxMultiport
	for _, p := range ports {
		need := 1
		if p.First != p.Last {
			need = 2
		}
		if room < need {
			out, chunk, room = append(out, strings.Join(chunk, ",")), nil, maxMultiport
		}
		chunk, room = append(chunk, renderRange(p)), room-need
	}
	return append(out, strings.Join(chunk, ","))
}

func renderRange(p iptables.PortRange) string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d:%d", p.First, p.Last)
}

func renderOwners(option string, ids []uint32, negated bool) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, " -m owner"+not(negated)+" "+option+" "+strconv.FormatUint(uint64(id), 10))
	}
	if negated && len(out) > 0 {
		return []string{strings.Join(out, "")}
	}
	return out
}

func renderStates(states []iptables.State) string {
	names := make([]string, 0, len(states))
	for _, s := range states {
		names = append(names, strings.ToUpper(string(s)))
	}
	return strings.Join(names, ",")
}

func renderMark(m iptables.Mark) string {
	if m.Mask == ^uint32(0) {
		return fmt.Sprintf("0x%x", m.Value)
	}
	return fmt.Sprintf("0x%x/0x%x", m.Value, m.Mask)
}

func renderVerdict(r iptables.Rule, family iptables.Families) (string, error) {
	switch v := r.Verdict; v.Action {
	case iptables.Return, iptables.Accept, iptables.Drop:
		return "-j " + string(v.Action), nil
	case iptables.Jump:
		return "-j " + kernelName(v.Chain, ""), nil
	case iptables.Redirect:
		return fmt.Sprintf("-j REDIRECT --to-ports %d", v.Port), nil
	case iptables.TransparentProxy:
		return fmt.Sprintf("-j TPROXY --on-port %d --tproxy-mark 0x%x/0x%x", v.Port, v.Mark.Value, v.Mark.Mask), nil
	case iptables.SetMark:
		return fmt.Sprintf("-j MARK --set-xmark 0x%x/0x%x", v.Mark.Value, v.Mark.Mask), nil
	case iptables.SaveMark:
		return "-j CONNMARK --save-mark", nil
	case iptables.RestoreMark:
		return "-j CONNMARK --restore-mark", nil
	case iptables.Zone:
		return fmt.Sprintf("-j CT --zone %d", v.ZoneID), nil
	case iptables.Reject:
		return "-j REJECT --reject-with " + refusal(r.Match.Protocol, family), nil
	}
	return "", fmt.Errorf("iptables cannot express the action %q", r.Verdict.Action)
}

func refusal(p iptables.Protocol, family iptables.Families) string {
	switch {
	case p == iptables.TCP:
		return "tcp-reset"
	case family == iptables.IPv6:
		return "icmp6-port-unreachable"
	}
	return "icmp-port-unreachable"
}

// quote quotes a word in the syntax of iptables-restore and iptables-save.
func quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t'\"\\") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}
