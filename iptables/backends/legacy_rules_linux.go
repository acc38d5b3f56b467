package backends

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// LegacyRules are the rules that iptables-legacy has in a namespace, of whomever, numbered as the kernel numbers them when
// it traces packets.
func LegacyRules(netns int) (all []iptables.PlacedRule, err error) {
	err = eachLegacy(netns, func(family legacyFamily, table string) error {
		t, err := readLegacy(family.domain, family.level, table)
		if err == nil {
			all = append(all, t.placed(family.layout, table)...)
		}
		return err
	})
	return all, err
}

// eachLegacy visits the tables that iptables-legacy has in a namespace, from within it.
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
	name string // "" is a verdict
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

// chainHead is the name of the target that begins a chain of a user's, whose name it holds, and that ends a table.
const chainHead = "ERROR"

// placed are the rules, each with its chain and number.
func (t *legacyTable) placed(at legacyLayout, table string) (all []iptables.PlacedRule) {
	t.eachRule(at, func(_ uint32, _ []byte, r iptables.PlacedRule) {
		r.Table = table
		all = append(all, r)
	})
	return all
}

// eachRule gives the rules with their offsets and entries, and what ends chains.
func (t *legacyTable) eachRule(at legacyLayout, f func(offset uint32, entry []byte, r iptables.PlacedRule)) {
	family := iptables.IPv4
	if at.size == 16 {
		family = iptables.IPv6
	}
	chains := t.chainsByOffset(at)
	chain, number := "", 0
	t.each(at, func(offset uint32, entry []byte) {
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

// chainsByOffset names the chains of users by where their first rule is, which is where jumps lead.
func (t *legacyTable) chainsByOffset(at legacyLayout) map[uint32]string {
	chains := map[uint32]string{}
	t.each(at, func(offset uint32, entry []byte) {
		if target, ok := targetOf(at, entry); ok && target.name == chainHead {
			chains[offset+uint32(len(entry))] = headName(target)
		}
	})
	return chains
}

// endsChain says whether the entry of a size is the last of its chain: a hook's, or before the head of the next one.
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

// commentOf is what the match "comment" of an entry says.
func commentOf(at legacyLayout, entry []byte) string {
	for name, data := range matchesOf(at, entry) {
		if name == "comment" {
			text, _, _ := bytes.Cut(data, []byte{0})
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}
