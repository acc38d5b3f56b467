package backends

import (
	"bytes"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// legacyLayout holds the offsets of fields in a table entry (struct ipt_entry, struct ip6t_entry).
type legacyLayout struct {
	family       string
	destination  int // destination address; its mask follows after the size of two addresses
	size         int // of an address
	targetOffset int
	nextOffset   int
	matches      int
}

var (
	layout4 = legacyLayout{family: "ip", destination: 4, size: 4, targetOffset: 88, nextOffset: 90, matches: 112}
	layout6 = legacyLayout{family: "ip6", destination: 16, size: 16, targetOffset: 140, nextOffset: 142, matches: 168}
)

// In struct xt_entry_match and struct xt_entry_target, the size, the name and a revision precede the data.
const (
	extensionData = 32
	extensionName = 2
	extensionRoom = 29
)

var (
	legacyHooks      = [5]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	legacyPriorities = map[string]int{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
)

// foreignLegacy returns the chains of other programs in legacy iptables, which nftables does not list.
func foreignLegacy(netns int) (all []iptables.ForeignChain, err error) {
	err = eachLegacy(netns, func(family legacyFamily, table string) error {
		// Unreadable tables are skipped.
		if t, err := readLegacy(family.domain, family.level, table); err == nil {
			all = append(all, t.foreign(family.layout, table)...)
		}
		return nil
	})
	return all, err
}

func (t *legacyTable) foreign(at legacyLayout, table string) (all []iptables.ForeignChain) {
	var named []iptables.NamedDestination
	count := [5]int{}
	drops := [5]bool{}
	t.eachRule(at, func(offset uint32, entry []byte, r iptables.PlacedRule) {
		if isOurs(r.Chain) || isOurs(r.Verdict) {
			return
		}
		for hook := range legacyHooks {
			switch {
			case t.hooks&(1<<hook) == 0:
			case offset == t.ends[hook]:
				drops[hook] = policyDrops(at, entry)
			case offset >= t.begins[hook] && offset < t.ends[hook]:
				count[hook]++
			}
		}
		named = append(named, namedDestinations(at, entry)...)
	})
	for hook, name := range legacyHooks {
		if t.hooks&(1<<hook) != 0 && (count[hook] > 0 || drops[hook]) {
			all = append(all, iptables.ForeignChain{Table: at.family + " " + table + " of iptables-legacy", Name: name,
				Hook: string(bytes.ToLower([]byte(name))), Priority: legacyPriorities[table], Rules: count[hook], Drops: drops[hook], NamedDestinations: named})
		}
	}
	return all
}

// isOurs reports whether the name is that of one of our chains.
func isOurs(chain string) bool {
	return slices.ContainsFunc(ownPrefixes, func(p string) bool { return strings.HasPrefix(chain, p) })
}

// forEachEntry calls f for each entry of a table, up to the first malformed one.
func (t *legacyTable) forEachEntry(at legacyLayout, f func(offset uint32, entry []byte)) {
	for offset := 0; offset+at.matches <= len(t.entries); {
		left := t.entries[offset:]
		next := int(binary.NativeEndian.Uint16(left[at.nextOffset:]))
		if next < at.matches || next > len(left) {
			return
		}
		f(uint32(offset), left[:next])
		offset += next
	}
}

// policyDrops decodes the verdict of a policy entry: -1 - NF_DROP, or -1 - NF_ACCEPT.
func policyDrops(at legacyLayout, entry []byte) bool {
	target := int(binary.NativeEndian.Uint16(entry[at.targetOffset:]))
	const drop = ^uint32(0)
	return target+extensionData+4 <= len(entry) && binary.NativeEndian.Uint32(entry[target+extensionData:]) == drop
}

// matchesOf iterates over the matches of an entry: the name and the data, up to the first malformed one.
func matchesOf(at legacyLayout, entry []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		end := min(int(binary.NativeEndian.Uint16(entry[at.targetOffset:])), len(entry))
		for left := entry[at.matches:max(at.matches, end)]; len(left) >= extensionData; {
			size := int(binary.NativeEndian.Uint16(left))
			if size < extensionData || size > len(left) {
				return
			}
			name, _, _ := bytes.Cut(left[extensionName:][:extensionRoom], []byte{0})
			if !yield(string(name), left[extensionData:size]) {
				return
			}
			left = left[size:]
		}
	}
}

// namedDestinations returns the destinations that a rule names.
func namedDestinations(at legacyLayout, entry []byte) (all []iptables.NamedDestination) {
	var address netip.Addr
	mask := entry[at.destination+2*at.size:][:at.size]
	if a, ok := netip.AddrFromSlice(entry[at.destination:][:at.size]); ok && len(bytes.Trim(mask, "\x00")) > 0 {
		address = a
	}
	for name, data := range matchesOf(at, entry) {
		for _, port := range iptables.PortsOfExtension(name, data) {
			all = append(all, iptables.NamedDestination{Port: port, Address: address})
		}
	}
	if len(all) == 0 && address.IsValid() {
		all = append(all, iptables.NamedDestination{Address: address})
	}
	return all
}
