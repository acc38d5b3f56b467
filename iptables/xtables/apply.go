package xtables

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/conntrack"
)

// change is a change that one tool makes to our part of one table.
type change struct {
	tool     tool
	table    iptables.Table
	from, to ownRules
	made     bool // the change creates the table
}

// Apply replaces the installed rules. If more than one table changes, it blocks new connections during the change.
func (b *Backend) Apply(ctx context.Context, rules *iptables.RuleSet) error {
	if rules == nil {
		return errors.New("no rule set to apply; use Clean to remove the installed rules")
	}
	return b.replace(ctx, iptables.Canonical(rules))
}

// Clean removes our rules of every flavour and family, the tables that we created, and our routing.
func (b *Backend) Clean(ctx context.Context) error { return b.replace(ctx, &iptables.RuleSet{}) }

func (b *Backend) replace(ctx context.Context, rules *iptables.RuleSet) error {
	release, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	before, err := b.readTables(ctx)
	if err != nil {
		return err
	}
	undone := &rollback{b: b}
	if err := b.replaceOver(ctx, before, rules, undone); err != nil {
		return errors.Join(err, undone.run(ctx))
	}
	return b.liftLeftoverGuards(ctx, before)
}

// replaceOver changes the installed state from before to the rule set. It adds required routing before the rules that
// use it, and removes obsolete routing after them. If more than one table changes, of both families together, it blocks
// new connections with guards, because a connection between two changes could be misdirected. If the process is killed,
// the guards remain, so that a pod is never partly captured.
func (b *Backend) replaceOver(ctx context.Context, before tableView, rules *iptables.RuleSet, undone *rollback) error {
	plans, err := b.plan(before, rules)
	if err != nil {
		return err
	}
	undoAdd, err := b.routes.Add(rules.Routing, rules.Families)
	if err != nil {
		return fmt.Errorf("adding the routing for transparent proxying: %w", err)
	}
	undone.routing = undoAdd
	if err := b.guardAll(ctx, before, plans, undone); err != nil {
		return err
	}
	for _, p := range plans {
		if err := b.applyFamily(ctx, before, p, undone); err != nil {
			return err
		}
	}
	if err := conntrack.DeleteStale(b.cfg.NetNS, conntrack.StaleAfter(iptables.Canonical(decode(before).Rules), rules)); err != nil {
		return err
	}
	if err := undone.liftGuards(ctx); err != nil {
		return err
	}
	if _, err := b.routes.Prune(rules.Routing, rules.Families); err != nil {
		return fmt.Errorf("removing obsolete routing: %w", err)
	}
	return nil
}

// plan is the state that one address family should have.
type plan struct {
	family iptables.Families
	texts  []tableText
	tools  []tool // tools that may install the texts, in the order in which they are tried; empty if texts is
}

// firstTool returns the tool that is tried first. It returns nil if there is nothing to install.
func (p *plan) firstTool() *tool {
	if len(p.tools) == 0 {
		return nil
	}
	return &p.tools[0]
}

func (b *Backend) plan(before tableView, rules *iptables.RuleSet) ([]plan, error) {
	var plans []plan
	for _, family := range families {
		p := plan{family: family}
		var err error
		if p.texts, err = render(rules, family); err != nil {
			return nil, err
		}
		if len(p.texts) > 0 {
			if p.tools = b.sortTools(before, family); len(p.tools) == 0 {
				return nil, fmt.Errorf("the rules need %s, which is not installed: install the package iptables, or use nftables", program(family))
			}
		}
		plans = append(plans, p)
	}
	return plans, nil
}

// guardAll blocks new connections of each family that changes, if more than one table changes in total.
func (b *Backend) guardAll(ctx context.Context, before tableView, plans []plan, undone *rollback) error {
	var by []tool
	count := 0
	for _, p := range plans {
		if changes := b.changes(before, p.family, p.firstTool(), p.texts); len(changes) > 0 {
			by, count = append(by, changes[0].tool), count+len(changes)
		}
	}
	if count < 2 {
		return nil
	}
	for _, t := range by {
		lift, err := b.guard(ctx, b.guardTools(t))
		if err != nil {
			return err
		}
		undone.lifts = append(undone.lifts, lift)
	}
	return nil
}

// guardTools returns the tools that can block a family's new connections. The first is best, which makes the changes.
func (b *Backend) guardTools(best tool) []tool {
	others := slices.DeleteFunc(b.toolsOf(best.family), func(t tool) bool { return t == best })
	return append([]tool{best}, others...)
}

// applyFamily makes the changes of one address family. It tries one flavour after the other, because the kernel may
// support the rules in only one of them.
func (b *Backend) applyFamily(ctx context.Context, before tableView, p plan, undone *rollback) error {
	if len(p.tools) == 0 {
		return b.execute(ctx, b.changes(before, p.family, nil, nil), undone)
	}
	var refused []error
	for i := range p.tools {
		own := &rollback{b: b}
		err := b.execute(ctx, b.changes(before, p.family, &p.tools[i], p.texts), own)
		if err == nil {
			undone.done = append(undone.done, own.done...)
			b.cfg.Logger.Debug("redirection rules installed", "program", p.tools[i].String())
			return nil
		}
		if undoErr := own.run(ctx); undoErr != nil {
			return errors.Join(err, undoErr)
		}
		if ctx.Err() != nil {
			return err
		}
		refused = append(refused, err)
		b.cfg.Logger.Info("the kernel rejected the redirection rules of this iptables flavour", "program", p.tools[i].String(), "error", err)
	}
	return errors.Join(refused...)
}

// changes lists the changes for family: first the changes by the chosen tool, then removals by other tools.
func (b *Backend) changes(before tableView, family iptables.Families, chosen *tool, texts []tableText) []change {
	var first, rest []change
	for _, t := range b.tools {
		if t.family != family {
			continue
		}
		for _, table := range tables {
			was := tableOf(before[t], table)
			c := change{tool: t, table: table, from: ownOf(was)}
			if chosen != nil && *chosen == t {
				c.to, c.made = wantedState(texts, table, was, t)
			}
			switch {
			case c.to.empty() && c.from.empty() || isEquivalent(c.from, c.to, family):
			case c.to.empty():
				rest = append(rest, c)
			default:
				first = append(first, c)
			}
		}
	}
	return append(first, rest...)
}

// wantedState returns our part of table as the chosen tool t should install it. made reports whether the table does
// not exist yet and must be created.
func wantedState(texts []tableText, table iptables.Table, was *saved, t tool) (to ownRules, made bool) {
	for i := range texts {
		if texts[i].table == table {
			made = was == nil && t.flavour == NFT
			return wantedPart(&texts[i], made || madeByUs(was)), made
		}
	}
	return ownRules{}, false
}

// isEquivalent reports whether two states have equivalent rules. It compares decoded rules, because the kernel does not
// print rules in the form in which they were written.
func isEquivalent(from, to ownRules, family iptables.Families) bool {
	if len(from.jumps) != len(to.jumps) || len(from.chains) != len(to.chains) {
		return false
	}
	for _, want := range to.jumps {
		got := jump{}
		for _, j := range from.jumps {
			if j.chain == want.chain {
				got = j
			}
		}
		if got.position != want.position || !areEquivalentRules([]string{got.rule}, []string{want.rule}) {
			return false
		}
	}
	for _, want := range to.chains {
		found := false
		for _, got := range from.chains {
			found = found || got.name == want.name && areEquivalentRules(got.rules, want.rules)
		}
		if !found {
			return false
		}
	}
	return true
}

func areEquivalentRules(got, want []string) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		g, err1 := decodeRule(got[i])
		w, err2 := decodeRule(want[i])
		if err1 != nil || err2 != nil || !reflect.DeepEqual(g, w) {
			return false
		}
	}
	return true
}

// execute makes the changes. One run of a program makes all consecutive changes of one tool.
func (b *Backend) execute(ctx context.Context, changes []change, undone *rollback) error {
	for len(changes) > 0 {
		n := slices.IndexFunc(changes, func(c change) bool { return c.tool != changes[0].tool })
		if n < 0 {
			n = len(changes)
		}
		if err := b.executeBatch(ctx, changes[:n], undone); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// executeBatch makes the changes of one tool. The program commits each table separately, so a failed run may have changed
// some tables. Therefore all changes are recorded in undone before the run.
func (b *Backend) executeBatch(ctx context.Context, changes []change, undone *rollback) error {
	var names []string
	var all strings.Builder
	for _, c := range changes {
		names = append(names, string(c.table))
		all.WriteString(transaction(c.table, c.from, c.to))
	}
	t, text := changes[0].tool, all.String()
	if err := b.inject(fmt.Sprintf("tables %s of %s", strings.Join(names, ", "), t)); err != nil {
		return err
	}
	undone.done = append(undone.done, changes...)
	if err := b.restore(ctx, t, text); err != nil {
		return fmt.Errorf("table %s: %w", failedTables(err, text, names), err)
	}
	for _, c := range changes {
		if c.to.empty() {
			b.dropTable(c.tool, c.table, c.from)
		}
	}
	return nil
}

// failedLine matches the line number in errors of iptables-restore: "Error occurred at line: 12", "line 12 failed".
var failedLine = regexp.MustCompile(`\bline:? (\d+)`)

// failedTables returns the name of the table in which a program failed. If the error does not name a line, it returns the
// names of all tables.
func failedTables(complaint error, text string, tables []string) string {
	if found := failedLine.FindStringSubmatch(complaint.Error()); found != nil {
		lines := strings.Split(text, "\n")
		n, _ := strconv.Atoi(found[1])
		for _, line := range slices.Backward(lines[:min(n, len(lines))]) {
			if table, is := strings.CutPrefix(line, "*"); is {
				return table
			}
		}
	}
	return strings.Join(tables, " or ")
}

func (b *Backend) inject(step string) error {
	if b.cfg.Inject == nil {
		return nil
	}
	return b.cfg.Inject(step)
}

func (b *Backend) restore(ctx context.Context, t tool, text string) error {
	args := []string{"--noflush"}
	if t.waits {
		args = append(args, "--wait", "30")
	}
	_, err := b.ns.run(ctx, text, t.restore, args...)
	return err
}
