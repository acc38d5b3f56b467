package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/conntrack"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/route"
)

// Backend is the nftables back end of one namespace. Between calls, it has no open sockets or files.
type Backend struct {
	cfg    Config
	routes *route.Routes
	turn   *namespace.Lock // lock of the caller; nil if each call acquires the lock
}

// New returns the back end of a namespace.
func New(cfg Config) (*Backend, error) {
	return &Backend{cfg: cfg, routes: route.New(route.Config{NetNS: cfg.NetNS, Disabled: cfg.RulesOnly, Inject: cfg.Inject})}, nil
}

// Name returns "nftables".
func (*Backend) Name() string { return Name }

// WithLock returns a back end that uses the namespace lock t, which the caller holds.
func (b *Backend) WithLock(t *namespace.Lock) *Backend {
	in := *b
	in.turn, in.routes = t, b.routes.WithLock(t)
	return &in
}

// withLock calls f with the namespace lock.
func (b *Backend) withLock(ctx context.Context, f func(*Backend, *conn) error) error {
	if b.turn == nil {
		t, err := namespace.Acquire(ctx, b.cfg.NetNS)
		if err != nil {
			return err
		}
		defer t.Release()
		b = b.WithLock(t)
	}
	c, err := connect(b.turn)
	if err != nil {
		return err
	}
	return f(b, c)
}

// Apply replaces the installed rules. It adds required routing before it installs the rules, and removes obsolete
// routing afterwards.
func (b *Backend) Apply(ctx context.Context, rules *iptables.RuleSet) error {
	rules = iptables.Canonical(rules)
	if rules == nil {
		return errors.New("no rule set to apply; use Clean to remove the installed rules")
	}
	return b.withLock(ctx, func(b *Backend, c *conn) error {
		undoAdd, err := b.routes.Add(rules.Routing, rules.Families)
		if err != nil {
			return fmt.Errorf("adding the routing for transparent proxying: %w", err)
		}
		before, err := b.replace(c, rules)
		if err != nil {
			return errors.Join(fmt.Errorf("applying the rules with nftables: %w", err), undoAdd())
		}
		if err := conntrack.DeleteStaleWith(c.socket, conntrack.StaleAfter(before, rules)); err != nil {
			return errors.Join(err, b.restore(c, before), undoAdd())
		}
		if _, err := b.routes.Prune(rules.Routing, rules.Families); err != nil {
			return errors.Join(fmt.Errorf("removing obsolete routing: %w", err), b.restore(c, before), undoAdd())
		}
		return nil
	})
}

// replace installs the rules in one transaction and returns the previous rules.
func (b *Backend) replace(c *conn, rules *iptables.RuleSet) (before *iptables.RuleSet, err error) {
	return before, b.transact(c, "replace the rules", func(old *state) (*batch, error) {
		before = decode(old).Rules
		next := newBatch(old.generation)
		return next, next.replace(rules, old)
	})
}

// restore installs before, the rules that replace returned. If before is nil, it removes our table.
func (b *Backend) restore(c *conn, before *iptables.RuleSet) error {
	err := b.transact(c, "restore the rules", func(old *state) (*batch, error) {
		next := newBatch(old.generation)
		if before != nil {
			return next, next.replace(before, old)
		}
		if old.exists {
			next.remove()
		}
		return next, nil
	})
	if err != nil {
		return fmt.Errorf("restoring the previous rules: %w", err)
	}
	return nil
}

// transact reads the current state, builds a batch from it and commits the batch. If another process changed rules in
// the meantime, it starts again, up to maxAttempts times.
func (b *Backend) transact(c *conn, step string, make func(*state) (*batch, error)) error {
	for range maxAttempts {
		old, err := c.readState(true)
		if err != nil {
			return err
		}
		next, err := make(old)
		if err != nil || len(next.parts) == 0 {
			return err
		}
		if b.cfg.Inject != nil {
			if err := b.cfg.Inject(step); err != nil {
				return err
			}
		}
		if old.exists {
			// After a removal, the kernel blocks the close of the socket for 10 ms and more, until no processor uses
			// the removed objects. The socket is therefore closed in the background.
			c.turn.CloseLater(unix.NETLINK_NETFILTER)
		}
		if err := c.commit(next); !errors.Is(err, unix.ERESTART) {
			return err
		}
	}
	return fmt.Errorf("other programs changed rules of the namespace during %d attempts: try again", maxAttempts)
}

// Read returns the installed rules in canonical form.
func (b *Backend) Read(ctx context.Context) (*iptables.Installed, error) {
	var out *iptables.Installed
	err := b.withLock(ctx, func(b *Backend, c *conn) error {
		s, err := c.readState(true)
		if err != nil {
			return err
		}
		out = decode(s)
		return b.routes.SetRouting(out)
	})
	return out, err
}

// Clean removes our table, and then our routing.
func (b *Backend) Clean(ctx context.Context) error {
	return b.withLock(ctx, func(b *Backend, c *conn) error {
		var before *iptables.RuleSet
		err := b.transact(c, "remove the rules", func(old *state) (*batch, error) {
			before = decode(old).Rules
			next := newBatch(old.generation)
			if old.exists {
				next.remove()
			}
			return next, nil
		})
		if err != nil {
			return fmt.Errorf("removing the rules with nftables: %w", err)
		}
		if _, err := b.routes.Prune(nil, 0); err != nil {
			return errors.Join(fmt.Errorf("removing the policy routing of pilotfish: %w", err), b.restore(c, before))
		}
		return conntrack.DeleteStaleWith(c.socket, conntrack.StaleAfter(before, nil))
	})
}
