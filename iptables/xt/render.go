package xt

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const (
	// ownPrefix begins the names of our chains that the contract has no name for.
	ownPrefix = "PILOTFISH_"
	// contractPrefix begins those that it has.
	contractPrefix = "ISTIO_"
	// jumpComment begins the comment of the one rule that we add to a chain of the kernel's. The model's name of the chain
	// that it leads to follows.
	jumpComment = "pilotfish "
)

// tables are in the order of a packet's path.
var tables = []iptables.Table{iptables.Raw, iptables.Mangle, iptables.NAT, iptables.Filter}

// families are those that there are binaries for.
var families = []iptables.Families{iptables.IPv4, iptables.IPv6}

// tableText is what a rule set is in one table of one family, in the words of iptables-restore.
type tableText struct {
	table  iptables.Table
	chains []chainText
}

type chainText struct {
	name  string
	hook  iptables.Hook
	model string   // the chain's name in the model
	rules []string // without "-A chain"
}

// Text is the rule set in the words of iptables-restore for a family, for people to read and as it would be put in force
// where nothing is yet. It is empty for a family that the rule set is not for.
func Text(rules *iptables.RuleSet, family iptables.Families) (string, error) {
	texts, err := render(rules, family)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, t := range texts {
		b.WriteString(transaction(t.table, own{}, wanted(&t, false)))
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

// kernelName is the chain's name in the kernel. A base chain is one that the kernel's own leads to.
func kernelName(model string, hook iptables.Hook) string {
	switch {
	case hook != "":
		return ownPrefix + string(hook)
	case strings.HasPrefix(model, contractPrefix):
		return model
	}
	return ownPrefix + model
}

// modelName is the reverse for chains that are no base chains.
func modelName(kernel string) string { return strings.TrimPrefix(kernel, ownPrefix) }

func ours(chain string) bool {
	return strings.HasPrefix(chain, ownPrefix) || strings.HasPrefix(chain, contractPrefix)
}

// renderRule gives the rule's lines: several where the model says "any of" and iptables can only say one.
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

// holdsFor tells whether the match can hold for packets of the family.
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

// renderMatch gives the conditions, each as its alternatives.
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

// renderAddresses says "none of" several addresses by ranges, as iptables takes only one address of each direction.
func renderAddresses(one, span string, prefixes []netip.Prefix, negated bool) []string {
	if negated && len(prefixes) > 1 {
		all := ""
		for _, p := range prefixes {
			all += " -m iprange ! " + span + " " + p.Masked().Addr().String() + "-" + last(p).String()
		}
		return []string{all}
	}
	out := make([]string, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, not(negated)+" "+one+" "+p.String())
	}
	return out
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// multiportMax is how many ports one multiport match holds; a range counts as two.
const multiportMax = 15

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
	room := multiportMax
	for _, p := range ports {
		need := 1
		if p.First != p.Last {
			need = 2
		}
		if room < need {
			out, chunk, room = append(out, strings.Join(chunk, ",")), nil, multiportMax
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
	return "", fmt.Errorf("iptables has no words for the action %q", r.Verdict.Action)
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

// quote gives a word as iptables-restore takes it and iptables-save prints it.
func quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t'\"\\") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}
