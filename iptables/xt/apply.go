package xt

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/conntrack"
)

// change is one table of one tool that is to be turned from one state into another, by one iptables-restore.
type change struct {
	tool     tool
	table    iptables.Table
	from, to own
	made     bool // the table is not there yet
}

// Apply replaces what is in force. Where more than one table of a family changes, its new connections wait meanwhile.
func (b *Backend) Apply(ctx context.Context, rules *iptables.RuleSet) error {
	if rules == nil {
		return errors.New("there is no rule set to apply; Clean takes away what is there")
	}
	return b.replace(ctx, iptables.Canonical(rules))
}

// Clean takes away our rules of every flavour and family, the tables that we made, and our routing.
func (b *Backend) Clean(ctx context.Context) error { return b.replace(ctx, &iptables.RuleSet{}) }

func (b *Backend) replace(ctx context.Context, rules *iptables.RuleSet) error {
	release, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	before, err := b.look(ctx)
	if err != nil {
		return err
	}
	undone := &undoing{b: b}
	if err := b.replaceOver(ctx, before, rules, undone); err != nil {
		return errors.Join(err, undone.run(ctx))
	}
	return b.liftLeft(ctx, before)
}

// replaceOver adds what routing needs before the rules that use it, and takes away what it no longer needs after them.
func (b *Backend) replaceOver(ctx context.Context, before sight, rules *iptables.RuleSet, undone *undoing) error {
	undoAdd, err := b.routes.Add(rules.Routing, rules.Families)
	if err != nil {
		return fmt.Errorf("add what transparent proxying needs: %w", err)
	}
	undone.routing = undoAdd
	for _, family := range families {
		if err := b.applyFamily(ctx, before, rules, family, undone); err != nil {
			return err
		}
	}
	if err := conntrack.Forget(b.cfg.NetNS, conntrack.After(iptables.Canonical(decode(before).Rules), rules)); err != nil {
		return err
	}
	if _, err := b.routes.Prune(rules.Routing, rules.Families); err != nil {
		return fmt.Errorf("remove routing of before: %w", err)
	}
	return nil
}

// applyFamily tries one flavour after the other; the kernel may lack what the rules need for one of them.
func (b *Backend) applyFamily(ctx context.Context, before sight, rules *iptables.RuleSet, family iptables.Families, undone *undoing) error {
	texts, err := render(rules, family)
	if err != nil {
		return err
	}
	if len(texts) == 0 {
		return b.execute(ctx, b.changes(before, family, nil, nil), undone)
	}
	tools := b.order(before, family)
	if len(tools) == 0 {
		return fmt.Errorf("the rules are for %s too, and there is no program for it: install the package iptables, or use nftables", program(family))
	}
	var refused []error
	for i := range tools {
		own := &undoing{b: b}
		err := b.execute(ctx, b.changes(before, family, &tools[i], texts), own)
		if err == nil {
			undone.done = append(undone.done, own.done...)
			b.cfg.Logger.Debug("rules are in force", "by", tools[i].String())
			return nil
		}
		if undoErr := own.run(ctx); undoErr != nil {
			return errors.Join(err, undoErr)
		}
		if ctx.Err() != nil {
			return err
		}
		refused = append(refused, err)
		b.cfg.Logger.Info("the kernel takes the rules not in this way", "by", tools[i].String(), "error", err)
	}
	return errors.Join(refused...)
}

// changes lists what has to be done for a family: first what the chosen tool gets, then what goes.
func (b *Backend) changes(before sight, family iptables.Families, chosen *tool, texts []tableText) []change {
	var first, rest []change
	for _, t := range b.tools {
		if t.family != family {
			continue
		}
		for _, table := range tables {
			was := tableOf(before[t], table)
			c := change{tool: t, table: table, from: ownOf(was)}
			if chosen != nil && *chosen == t {
				c.to, c.made = wantedOf(texts, table, was, t)
			}
			switch {
			case c.to.empty() && c.from.empty() || same(c.from, c.to, family):
			case c.to.empty():
				rest = append(rest, c)
			default:
				first = append(first, c)
			}
		}
	}
	return append(first, rest...)
}

// wantedOf is what a table of the chosen tool has to hold. That a table was made by us is kept in it.
func wantedOf(texts []tableText, table iptables.Table, was *saved, t tool) (to own, made bool) {
	for i := range texts {
		if texts[i].table == table {
			made = was == nil && t.flavour == NFT
			return wanted(&texts[i], made || madeByUs(was)), made
		}
	}
	return own{}, false
}

// same tells whether the kernel holds what it should. It compares what the lines mean, as the kernel words them anew.
func same(from, to own, family iptables.Families) bool {
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
		if got.position != want.position || !sameRules([]string{got.rule}, []string{want.rule}) {
			return false
		}
	}
	for _, want := range to.chains {
		found := false
		for _, got := range from.chains {
			found = found || got.name == want.name && sameRules(got.rules, want.rules)
		}
		if !found {
			return false
		}
	}
	return true
}

func sameRules(got, want []string) bool {
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

// execute makes the changes, each at once. Between two of them connections could go astray, so that new ones are held up:
// at the first apply too, as who is killed half-way must not leave a pod that looks captured and is so in part.
func (b *Backend) execute(ctx context.Context, changes []change, undone *undoing) error {
	if len(changes) > 1 {
		lift, err := b.guard(ctx, changes[0].tool)
		if err != nil {
			return err
		}
		undone.lift = lift
	}
	for _, c := range changes {
		if err := b.inject(fmt.Sprintf("table %s of %s", c.table, c.tool)); err != nil {
			return err
		}
		if err := b.restore(ctx, c.tool, transaction(c.table, c.from, c.to)); err != nil {
			return fmt.Errorf("table %s: %w", c.table, err)
		}
		undone.done = append(undone.done, c)
		if c.to.empty() {
			b.dropTable(c.tool, c.table, c.from)
		}
	}
	return undone.liftGuard(ctx)
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
