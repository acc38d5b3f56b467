package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/route"
)

// rollback records the completed changes and how to revert them.
type rollback struct {
	b       *Backend
	done    []change
	routing route.Undo
	lifts   []func(context.Context) error // functions that remove the guards
}

// run reverts the completed changes in reverse order, then the routing, and then removes the guards. It does so even if
// ctx has ended.
func (u *rollback) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	for _, c := range slices.Backward(u.done) {
		if err := u.b.revert(ctx, c); err != nil {
			errs = append(errs, fmt.Errorf("restoring table %s of %s: %w", c.table, c.tool, err))
		}
	}
	if u.routing != nil {
		errs = append(errs, u.routing())
	}
	return errors.Join(append(errs, u.liftGuards(ctx))...)
}

// liftGuards removes the guards. After a failure, it may be called again to remove the remaining ones.
func (u *rollback) liftGuards(ctx context.Context) error {
	var errs []error
	u.lifts = slices.DeleteFunc(u.lifts, func(lift func(context.Context) error) bool {
		err := lift(ctx)
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

// revert restores the previous state of a table. It reads the current rules before that. iptables may print rules in a
// form that differs from the written one, and the printed form is necessary to delete a rule.
func (b *Backend) revert(ctx context.Context, c change) error {
	now, err := b.tablesOf(ctx, c.tool)
	if err != nil {
		return err
	}
	table := tableOf(now, c.table)
	if table == nil && c.from.empty() {
		return nil
	}
	to := c.from
	for i, guard := 0, guardOf(table); i < len(to.jumps) && !guard.empty(); i++ { // the guard's jump is the first rule
		to.jumps = slices.Clone(to.jumps)
		to.jumps[i].position++
	}
	if err := b.restore(ctx, c.tool, transaction(c.table, ownOf(table), to)); err != nil {
		return err
	}
	if c.made {
		b.dropTable(c.tool, c.table, c.to)
	}
	return nil
}

const (
	guardTable = iptables.Filter
	guardChain = ownPrefix + "GUARD"
)

// guarded lists the built-in chains to which the guard is added. They are for inbound, forwarded (virtual machines) and
// outbound connections.
var guarded = []string{"INPUT", "FORWARD", "OUTPUT"}

// guard installs rules that drop the first packets of a family's new connections. The senders retransmit these packets.
// lift removes the rules. guard tries the tools in order until one installs the rules.
func (b *Backend) guard(ctx context.Context, tools []tool) (lift func(context.Context) error, err error) {
	var refused []error
	for _, t := range tools {
		if lift, err = b.guardBy(ctx, t); err == nil {
			return lift, nil
		}
		refused = append(refused, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(refused...)
}

func (b *Backend) guardBy(ctx context.Context, t tool) (lift func(context.Context) error, err error) {
	all, err := b.tablesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	if err := b.inject("guard of " + t.String()); err != nil {
		return nil, err
	}
	was := tableOf(all, guardTable)
	made := was == nil && t.flavour == NFT
	comment := jumpComment + "guard"
	if made || madeByUs(was) {
		comment += madeMark
	}
	to := ownRules{chains: []savedChain{{name: guardChain, rules: []string{"-m conntrack --ctstate NEW -j DROP"}}}}
	for _, chain := range guarded {
		to.jumps = append(to.jumps, jump{chain, 1, "-m comment --comment " + quote(comment) + " -j " + guardChain})
	}
	if err := b.restore(ctx, t, transaction(guardTable, guardOf(was), to)); err != nil {
		return nil, fmt.Errorf("blocking new connections while the rules are changed: %w", err)
	}
	return func(ctx context.Context) error { return b.lift(ctx, t, to) }, nil
}

func (b *Backend) lift(ctx context.Context, t tool, from ownRules) error {
	if err := b.inject("lifting the guard of " + t.String()); err != nil {
		return err
	}
	if err := b.restore(ctx, t, transaction(guardTable, from, ownRules{})); err != nil {
		return fmt.Errorf("allowing new connections after the change of the rules: %w", err)
	}
	b.dropTable(t, guardTable, from)
	return nil
}

// liftLeftoverGuards removes guards that remain from a process that was killed. It is called after the rules are
// installed.
func (b *Backend) liftLeftoverGuards(ctx context.Context, before tableView) error {
	for t, all := range before {
		if guardOf(tableOf(all, guardTable)).empty() {
			continue
		}
		now, err := b.tablesOf(ctx, t)
		if err != nil {
			return err
		}
		if left := guardOf(tableOf(now, guardTable)); !left.empty() {
			if err := b.lift(ctx, t, left); err != nil {
				return err
			}
		}
	}
	return nil
}

// madeByUs reports whether we created the table. The comments of our jumps contain this information.
func madeByUs(s *saved) bool { return madeFor(ownOf(s)) || madeFor(guardOf(s)) }

func madeFor(o ownRules) bool {
	return slices.ContainsFunc(o.jumps, func(j jump) bool {
		rule, err := decodeRule(j.rule)
		return err == nil && strings.HasPrefix(rule.ID, jumpComment) && strings.HasSuffix(rule.ID, madeMark)
	})
}
