package xtables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// saved is one table of one family in the output of iptables-save.
type saved struct {
	table  iptables.Table
	chains []savedChain
}

type savedChain struct {
	name    string
	builtin bool
	policy  string   // policy of a built-in chain
	rules   []string // rules without "-A chain"
}

// parseSaved parses the output of iptables-save. It returns all tables, including those that redirection does not use.
func parseSaved(text string) ([]saved, error) {
	var out []saved
	var table *saved
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] == '*':
			out = append(out, saved{table: iptables.Table(line[1:])})
			table = &out[len(out)-1]
			continue
		case line == "COMMIT":
			table = nil
			continue
		}
		if table == nil {
			return nil, fmt.Errorf("line %d: %.80q is not in a table", number+1, line)
		}
		if err := table.add(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	return out, nil
}

func (s *saved) add(line string) error {
	if name, rest, ok := strings.Cut(strings.TrimPrefix(line, ":"), " "); ok && line[0] == ':' {
		policy, _, _ := strings.Cut(rest, " ")
		s.chains = append(s.chains, savedChain{name: name, builtin: policy != "-", policy: policy})
		return nil
	}
	rest, ok := strings.CutPrefix(line, "-A ")
	if !ok {
		return fmt.Errorf("%.80q is neither a chain nor a rule", line)
	}
	name, rule, _ := strings.Cut(rest, " ")
	c := s.chain(name)
	if c == nil {
		return fmt.Errorf("the rule %.80q is in an undeclared chain", line)
	}
	c.rules = append(c.rules, rule)
	return nil
}

func (s *saved) chain(name string) *savedChain {
	for i := range s.chains {
		if s.chains[i].name == name {
			return &s.chains[i]
		}
	}
	return nil
}

// tableOf returns the table, or nil if it does not exist.
func tableOf(all []saved, table iptables.Table) *saved {
	i := slices.IndexFunc(all, func(s saved) bool { return s.table == table })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// jump is one of our rules in a built-in chain. It jumps to one of our chains.
type jump struct {
	chain    string
	position int // position in the chain; the first is 1
	rule     string
}

// ownRules is our part of a table: our chains, and our jumps in built-in chains.
type ownRules struct {
	chains []savedChain
	jumps  []jump
}

func (o ownRules) empty() bool { return len(o.chains) == 0 && len(o.jumps) == 0 }

// ownOf returns our part of a table, without the guard (see Backend.guard).
func ownOf(s *saved) ownRules {
	return part(s, func(chain string) bool { return ours(chain) && chain != guardChain })
}

// guardOf returns the guard's chain, and the jumps to it, in a filter table.
func guardOf(s *saved) ownRules {
	return part(s, func(chain string) bool { return chain == guardChain })
}

func part(s *saved, of func(chain string) bool) ownRules {
	var o ownRules
	if s == nil {
		return o
	}
	for _, c := range s.chains {
		switch {
		case of(c.name):
			o.chains = append(o.chains, c)
		case c.builtin:
			for i, rule := range c.rules {
				if of(jumpTarget(rule)) {
					o.jumps = append(o.jumps, jump{c.name, i + 1, rule})
				}
			}
		}
	}
	return o
}

// jumpTarget returns the target of a rule, or "" if it has none.
func jumpTarget(rule string) string {
	words, err := split(rule)
	if err != nil {
		return ""
	}
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "--comment": // skip the comment, because it may look like an option
			i++
		case "-j", "-g":
			return words[i+1]
		}
	}
	return ""
}

// wantedPart returns our part of a table as it will be when the text is installed.
func wantedPart(t *tableText, madeTable bool) ownRules {
	var o ownRules
	if t == nil {
		return o
	}
	for _, c := range t.chains {
		o.chains = append(o.chains, savedChain{name: c.name, rules: c.rules})
		if c.hook != "" {
			o.jumps = append(o.jumps, jump{string(c.hook), 1, jumpRule(c, madeTable)})
		}
	}
	return o
}

// madeMark is the suffix of a jump's comment in a table that we created. Because of it, Clean removes the table too.
const madeMark = " (and its table)"

func jumpRule(c chainText, madeTable bool) string {
	comment := jumpComment + c.model
	if madeTable {
		comment += madeMark
	}
	return "-m comment --comment " + quote(comment) + " -j " + c.name
}

// transaction returns input for iptables-restore --noflush that changes our part of a table atomically. It does not change
// other chains and rules of the table.
func transaction(table iptables.Table, from, to ownRules) string {
	var b strings.Builder
	writeLine := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	writeLine("*%s", table)
	for _, c := range union(from.chains, to.chains) { // the declaration creates the chain, or flushes an existing one
		writeLine(":%s - [0:0]", c)
	}
	for _, j := range from.jumps {
		writeLine("-D %s %s", j.chain, j.rule)
	}
	for _, c := range to.chains {
		for _, r := range c.rules {
			writeLine("-A %s %s", c.name, shortenRule(r))
		}
	}
	for _, j := range to.jumps {
		writeLine("-I %s %d %s", j.chain, j.position, j.rule)
	}
	for _, c := range from.chains {
		if !slices.ContainsFunc(to.chains, func(t savedChain) bool { return t.name == c.name }) {
			writeLine("-X %s", c.name)
		}
	}
	writeLine("COMMIT")
	return b.String()
}

func union(a, b []savedChain) []string {
	var names []string
	for _, c := range slices.Concat(a, b) {
		if !slices.Contains(names, c.name) {
			names = append(names, c.name)
		}
	}
	return names
}

// split splits a rule into words. It resolves the quoting of iptables-save.
func split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quoted := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && quoted:
			if i++; i == len(line) {
				return nil, fmt.Errorf("%.80q ends with a backslash", line)
			}
			word.WriteByte(line[i])
		case c == '"':
			inWord, quoted = true, !quoted
		case (c == ' ' || c == '\t') && !quoted:
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			inWord = true
			word.WriteByte(c)
		}
	}
	if quoted {
		return nil, fmt.Errorf("%.80q has an unterminated quotation", line)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
