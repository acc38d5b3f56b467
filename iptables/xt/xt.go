package xt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	netlock "github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/route"
)

// Config says for which namespace a back end is.
type Config struct {
	// NetNS is a file descriptor of the network namespace, which stays the caller's; 0 or -1 stand for the one that the
	// calling thread is in.
	NetNS int
	// Flavour forces one; by default each family has the one whose rules are there, or else the first that works.
	Flavour Flavour
	// Logger is told what is chosen and why; nil: nobody.
	Logger *slog.Logger
	// RulesOnly leaves routing to somebody else: it is not touched, and not looked at.
	RulesOnly bool
	// Turn is the caller's at the namespace, as it does more than one thing in it; nil: each call takes one of its own.
	Turn *netlock.Turn
	// Inject is for tests: it is called before each step of a change, which fails where it returns an error.
	Inject func(step string) error
}

// Backend is iptables in one namespace.
type Backend struct {
	cfg    Config
	ns     namespace
	tools  []tool // in the order in which they are tried
	routes *route.Routes
}

var _ iptables.Backend = (*Backend)(nil)

// New finds the binaries. It fails where there is none for IPv4; one for IPv6 is asked for when rules for it are.
func New(ctx context.Context, cfg Config) (*Backend, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Backend{cfg: cfg, ns: namespace{fd: cfg.NetNS}, routes: route.New(route.Config{NetNS: cfg.NetNS, Leave: cfg.RulesOnly, Inject: cfg.Inject})}
	var troubles []error
	for _, family := range families {
		tools, err := find(ctx, family)
		troubles = append(troubles, err)
		b.tools = append(b.tools, tools...)
	}
	if len(b.of(iptables.IPv4)) == 0 {
		wanted := "iptables"
		if cfg.Flavour != "" {
			wanted += "-" + string(cfg.Flavour)
		}
		return nil, errors.Join(append(troubles, fmt.Errorf(
			"no %s in $PATH or %s: install the package iptables, or use nftables, which needs no program", wanted, strings.Join(standardFolders, ", ")))...)
	}
	return b, nil
}

// of gives the tools of a family that may be used for new rules, best first.
func (b *Backend) of(family iptables.Families) []tool {
	var out []tool
	for _, t := range b.tools {
		if t.family == family && (b.cfg.Flavour == "" || t.flavour == b.cfg.Flavour) {
			out = append(out, t)
		}
	}
	return out
}

// Name is that of the flavour which IPv4 has, or would have.
func (b *Backend) Name() string {
	if s, err := b.look(context.Background()); err == nil {
		return "iptables-" + string(b.order(s, iptables.IPv4)[0].flavour)
	}
	return "iptables-" + string(b.of(iptables.IPv4)[0].flavour)
}

// sight is what all tools see in the namespace.
type sight map[tool][]saved

// look asks each tool what there is.
func (b *Backend) look(ctx context.Context) (sight, error) {
	s := sight{}
	for _, t := range b.tools {
		tables, err := b.tablesOf(ctx, t)
		if err != nil {
			return nil, err
		}
		s[t] = tables
	}
	return s, nil
}

// tablesOf asks one tool. The legacy one is asked for nothing where it has no table, as that might make one.
func (b *Backend) tablesOf(ctx context.Context, t tool) ([]saved, error) {
	if t.flavour == Legacy {
		file := "ip_tables_names"
		if t.family == iptables.IPv6 {
			file = "ip6_tables_names"
		}
		if names, err := b.ns.legacyTables(file); err != nil || len(names) == 0 {
			return nil, err
		}
	}
	text, err := b.ns.run(ctx, "", t.save)
	if err != nil {
		return nil, fmt.Errorf("what %s has: %w", t, err)
	}
	tables, err := parseSaved(text)
	if err != nil {
		return nil, fmt.Errorf("what %s has: %w", t, err)
	}
	return tables, nil
}

// order puts the tools of a family in the order in which to try them: that which has our rules, then that which has any
// rules, so that a namespace keeps its flavour. Tables without rules count for nothing: a mere look may have made them.
func (b *Backend) order(s sight, family iptables.Families) []tool {
	tools := b.of(family)
	weight := func(t tool) int {
		rank := 0
		for _, table := range s[t] {
			if !ownOf(&table).empty() {
				return 2
			}
			if slices.ContainsFunc(table.chains, func(c savedChain) bool { return len(c.rules) > 0 }) {
				rank = 1
			}
		}
		return rank
	}
	slices.SortStableFunc(tools, func(a, b tool) int { return weight(b) - weight(a) })
	return tools
}

// lock has programs run in the caller's turn at the namespace, or in one that ends with release.
func (b *Backend) lock(ctx context.Context) (release func(), err error) {
	if b.cfg.Turn != nil {
		b.ns.turn = b.cfg.Turn
		return func() {}, nil
	}
	if b.ns.turn, err = netlock.Take(ctx, b.cfg.NetNS); err != nil {
		return nil, err
	}
	return func() {
		b.ns.turn.End()
		b.ns.turn = nil
	}, nil
}

// Read gives what is in force, of whichever flavour, in canonical form.
func (b *Backend) Read(ctx context.Context) (*iptables.Installed, error) {
	release, err := b.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := b.look(ctx)
	if err != nil {
		return nil, err
	}
	in := decode(s)
	if err := b.routes.Complete(in); err != nil {
		return nil, err
	}
	in.Rules = iptables.Canonical(in.Rules)
	return in, nil
}

func decode(s sight) *iptables.Installed {
	in := &iptables.Installed{}
	chains := map[iptables.Families][]iptables.Chain{}
	var present iptables.Families
	for t, all := range s {
		found, strange := decodeAll(all, t.family)
		in.Strange = append(in.Strange, strange...)
		if len(found) == 0 {
			continue
		}
		if present&t.family != 0 {
			in.Strange = append(in.Strange, fmt.Sprintf("rules of ours stand in both flavours of %s", program(t.family)))
		}
		present |= t.family
		chains[t.family] = append(chains[t.family], found...)
	}
	slices.Sort(in.Strange)
	switch present {
	case 0:
		return in
	case iptables.BothFamilies:
		in.Rules = &iptables.RuleSet{Chains: mergeFamilies(chains[iptables.IPv4], chains[iptables.IPv6])}
	default:
		in.Rules = &iptables.RuleSet{Chains: chains[present]}
	}
	in.Rules.Families = present
	return in
}

func decodeAll(all []saved, family iptables.Families) (chains []iptables.Chain, strange []string) {
	for _, table := range tables {
		found, odd := decodeTable(tableOf(all, table), family)
		chains, strange = append(chains, found...), append(strange, odd...)
	}
	if !guardOf(tableOf(all, guardTable)).empty() {
		strange = append(strange, string(guardTable)+": "+guardChain+" holds up every new connection: an apply did not end; apply again")
	}
	return chains, strange
}
