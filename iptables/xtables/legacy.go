package xtables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// ErrNoLegacySave is returned for a namespace with tables of iptables-legacy if no installed program can read them.
var ErrNoLegacySave = errors.New("the network namespace has tables of iptables-legacy, but no installed program can read them")

// HasLegacyChains reports whether iptables-legacy has chains with our names or Istio's in the namespace. netns is a file
// descriptor; 0 or less selects the namespace of the calling thread. It runs iptables-legacy-save only if the namespace has
// legacy tables, and returns ErrNoLegacySave if that program is missing.
func HasLegacyChains(ctx context.Context, netns int) (bool, error) {
	tables, err := readLegacyTables(ctx, netns)
	return slices.ContainsFunc(tables, func(t legacyTable) bool {
		return slices.ContainsFunc(t.chains, func(c savedChain) bool { return ours(c.name) })
	}), err
}

// ForeignLegacyChains returns the built-in chains of iptables-legacy that have rules of other programs, or the policy
// DROP. Its parameters and errors are the same as those of HasLegacyChains.
func ForeignLegacyChains(ctx context.Context, netns int) (all []iptables.ForeignChain, err error) {
	tables, err := readLegacyTables(ctx, netns)
	for _, t := range tables {
		all = append(all, t.foreignChains()...)
	}
	return all, err
}

// legacyTable is one table of iptables-legacy.
type legacyTable struct {
	saved
	family iptables.Families
}

// readLegacyTables returns the tables of iptables-legacy of both families that exist in the namespace.
func readLegacyTables(ctx context.Context, netns int) (all []legacyTable, err error) {
	n := namespace{fd: netns}
	names, err := n.legacyTables()
	if err != nil {
		return nil, err
	}
	for _, family := range families {
		if len(names[family]) == 0 {
			continue
		}
		save, err := findLegacySave(ctx, family)
		if err != nil {
			return all, err
		}
		text, err := n.run(ctx, "", save)
		if err != nil {
			return all, err
		}
		tables, err := parseSaved(text)
		if err != nil {
			return all, fmt.Errorf("parsing the output of %s: %w", save, err)
		}
		for _, t := range tables {
			all = append(all, legacyTable{t, family})
		}
	}
	return all, nil
}

// findLegacySave returns the path of the program that prints the legacy tables of a family.
func findLegacySave(ctx context.Context, family iptables.Families) (string, error) {
	name := program(family)
	if path, err := lookUp(name + "-legacy-save"); err == nil {
		return path, nil
	}
	if path, err := lookUp(name); err == nil {
		if output, err := version(ctx, path); err == nil && flavourOf(path, output) == Legacy {
			return path + "-save", nil
		}
	}
	return "", fmt.Errorf("%w: install %s-legacy-save (package iptables)", ErrNoLegacySave, name)
}

var legacyPriorities = map[iptables.Table]int{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}

func (t *legacyTable) foreignChains() (all []iptables.ForeignChain) {
	prefix := "ip "
	if t.family == iptables.IPv6 {
		prefix = "ip6 "
	}
	var named []iptables.NamedDestination
	for _, c := range t.chains {
		if ours(c.name) {
			continue
		}
		count := 0
		for _, rule := range c.rules {
			if !ours(jumpTarget(rule)) {
				count++
				named = append(named, namedDestinations(rule)...)
			}
		}
		if drops := c.policy == "DROP"; c.builtin && (count > 0 || drops) {
			all = append(all, iptables.ForeignChain{Table: prefix + string(t.table) + " of iptables-legacy", Name: c.name,
				Hook: strings.ToLower(c.name), Priority: legacyPriorities[t.table], Rules: count, Drops: drops})
		}
	}
	for i := range all {
		all[i].NamedDestinations = named
	}
	return all
}

// namedDestinations returns the destinations that a rule matches. For a port range, it uses the first port.
func namedDestinations(rule string) (all []iptables.NamedDestination) {
	words, err := split(rule)
	if err != nil {
		return nil
	}
	var address netip.Addr
	for i := 0; i+1 < len(words); i++ {
		value := words[i+1]
		switch words[i] {
		case "--comment": // skip the comment, because it may look like an option
			i++
		case "-d":
			text, _, _ := strings.Cut(value, "/")
			address, _ = netip.ParseAddr(text)
		case "--dport", "--dports", "--ports":
			for part := range strings.SplitSeq(value, ",") {
				first, _, _ := strings.Cut(part, ":")
				if port, err := strconv.ParseUint(first, 10, 16); err == nil {
					all = append(all, iptables.NamedDestination{Port: uint16(port)})
				}
			}
		}
	}
	if len(all) == 0 && address.IsValid() {
		all = append(all, iptables.NamedDestination{})
	}
	for i := range all {
		all[i].Address = address
	}
	return all
}
