package backends

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// LegacyRules returns all rules of iptables-legacy in a namespace, including foreign ones. They have the numbers that
// the kernel reports when it traces packets.
func LegacyRules(netns int) (all []iptables.PlacedRule, err error) {
	err = eachLegacy(netns, func(family legacyFamily, table string) error {
		t, err := readLegacy(family.domain, family.level, table)
		if err == nil {
			all = append(all, t.placedRules(family.layout, table)...)
		}
		return err
	})
	return all, err
}

// eachLegacy calls visit for each legacy table of a namespace, on a thread in the namespace.
func eachLegacy(netns int, visit func(family legacyFamily, table string) error) error {
	return namespace.Do(netns, func() error {
		var l legacy
		l.open()
		defer l.close()
		for i, family := range legacyFamilies {
			tables, err := listed(l.lists[i], l.errs[i])
			if err != nil {
				return err
			}
			for _, table := range tables {
				if err := visit(family, table); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// legacyTarget is an entry's target.
type legacyTarget struct {
	name string // "" for a verdict
	data []byte
}

func targetOf(at legacyLayout, entry []byte) (t legacyTarget, ok bool) {
	offset := int(binary.NativeEndian.Uint16(entry[at.targetOffset:]))
	if offset < at.matches || offset+extensionData > len(entry) {
		return t, false
	}
	name, _, _ := bytes.Cut(entry[offset+extensionName:][:extensionRoom], []byte{0})
	return legacyTarget{string(name), entry[offset+extensionData:]}, true
}

// chainHead is the target at the start of a user-defined chain, which holds the chain's name, and at the end of a
// table.
const chainHead = "ERROR"

// placedRules returns the rules, each with its chain and number.
func (t *legacyTable) placedRules(at legacyLayout, table string) (all []iptables.PlacedRule) {
	t.eachRule(at, func(_ uint32, _ []byte, r iptables.PlacedRule) {
		r.Table = table
		all = append(all, r)
	})
	return all
}

// eachRule calls f for each rule and each chain end, with the offset and the entry.
func (t *legacyTable) eachRule(at legacyLayout, f func(offset uint32, entry []byte, r iptables.PlacedRule)) {
	family := iptables.IPv4
	if at.size == 16 {
		family = iptables.IPv6
	}
	chains := t.chainsByOffset(at)
	chain, number := "", 0
	t.forEachEntry(at, func(offset uint32, entry []byte) {
		target, ok := targetOf(at, entry)
		if !ok {
			return
		}
		for hook, name := range legacyHooks {
			if t.hooks&(1<<hook) != 0 && offset == t.begins[hook] {
				chain, number = name, 0
			}
		}
		if target.name == chainHead {
			chain, number = headName(target), 0
			return
		}
		number++
		f(offset, entry, iptables.PlacedRule{Family: family, Chain: chain, Number: number,
			Policy: t.endsChain(at, offset, len(entry)), Comment: commentOf(at, entry), Verdict: target.verdict(chains)})
	})
}

func headName(t legacyTarget) string {
	name, _, _ := bytes.Cut(t.data, []byte{0})
	return string(name)
}

// chainsByOffset returns the names of user-defined chains by the offset of their first rule, to which jumps refer.
func (t *legacyTable) chainsByOffset(at legacyLayout) map[uint32]string {
	chains := map[uint32]string{}
	t.forEachEntry(at, func(offset uint32, entry []byte) {
		if target, ok := targetOf(at, entry); ok && target.name == chainHead {
			chains[offset+uint32(len(entry))] = headName(target)
		}
	})
	return chains
}

// endsChain reports whether the entry is the last of its chain: a hook's policy, or the entry before the next chain's
// head.
func (t *legacyTable) endsChain(at legacyLayout, offset uint32, size int) bool {
	for hook := range legacyHooks {
		if t.hooks&(1<<hook) != 0 && offset == t.ends[hook] {
			return true
		}
	}
	next := int(offset) + size
	if next+at.matches > len(t.entries) {
		return true
	}
	entry := t.entries[next:]
	entry = entry[:min(len(entry), max(at.matches, int(binary.NativeEndian.Uint16(entry[at.nextOffset:]))))]
	target, ok := targetOf(at, entry)
	return ok && target.name == chainHead
}

// Verdicts of a rule without a target are negative: -1 less the number of linux/netfilter.h; NF_REPEAT is RETURN.
const (
	verdictDrop   = -1
	verdictAccept = -2
	verdictReturn = -5
)

func (t legacyTarget) verdict(chains map[uint32]string) string {
	if t.name != "" || len(t.data) < 4 {
		return t.name
	}
	switch v := int32(binary.NativeEndian.Uint32(t.data)); v {
	case verdictDrop:
		return "drop"
	case verdictAccept:
		return "accept"
	case verdictReturn:
		return "return"
	default:
		return chains[uint32(v)]
	}
}

// commentOf returns the text of an entry's comment match.
func commentOf(at legacyLayout, entry []byte) string {
	for name, data := range matchesOf(at, entry) {
		if name == "comment" {
			text, _, _ := bytes.Cut(data, []byte{0})
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}
