package xtables

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

// Config configures a back end for one namespace.
type Config struct {
	// NetNS is a file descriptor of the network namespace, which the caller closes. 0 or less selects the calling thread's
	// namespace.
	NetNS int
	// Flavour forces one flavour. If it is "", each address family uses the flavour that has rules, or otherwise the
	// first that works.
	Flavour Flavour
	// Logger logs the selection of binaries and its reason; nil discards the log.
	Logger *slog.Logger
	// RulesOnly makes the back end neither read nor change routing.
	RulesOnly bool
	// Lock is the namespace lock that the caller holds. If it is nil, each call acquires the lock.
	Lock *netlock.Lock
	// Inject is for tests. It is called before each step of a change. If it returns an error, the step fails.
	Inject func(step string) error
}

// Backend is the iptables back end of one namespace.
type Backend struct {
	cfg    Config
	ns     namespace
	tools  []tool // found binaries, in the order in which they are tried
	routes *route.Routes
}

var _ iptables.Backend = (*Backend)(nil)

// New returns the back end of a namespace. It fails if no binaries for IPv4 are installed. Binaries for IPv6 are needed only
// to apply rules for IPv6.
func New(ctx context.Context, cfg Config) (*Backend, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Backend{cfg: cfg, ns: namespace{fd: cfg.NetNS}, routes: route.New(route.Config{NetNS: cfg.NetNS, Disabled: cfg.RulesOnly, Inject: cfg.Inject})}
	var troubles []error
	for _, family := range families {
		tools, err := findTools(ctx, family)
		troubles = append(troubles, err)
		b.tools = append(b.tools, tools...)
	}
	if len(b.toolsOf(iptables.IPv4)) == 0 {
		wanted := "iptables"
		if cfg.Flavour != "" {
			wanted += "-" + string(cfg.Flavour)
		}
		return nil, errors.Join(append(troubles, fmt.Errorf(
			"no %s in $PATH or %s: install the package iptables, or use nftables, which does not need a program", wanted, strings.Join(standardFolders, ", ")))...)
	}
	return b, nil
}

// toolsOf returns the tools of a family that may install rules, in the order of preference.
func (b *Backend) toolsOf(family iptables.Families) []tool {
	var out []tool
	for _, t := range b.tools {
		if t.family == family && (b.cfg.Flavour == "" || t.flavour == b.cfg.Flavour) {
			out = append(out, t)
		}
	}
	return out
}

// Name returns "iptables-nft" or "iptables-legacy": the flavour that is used for IPv4.
func (b *Backend) Name() string {
	if s, err := b.readTables(context.Background()); err == nil {
		return "iptables-" + string(b.sortTools(s, iptables.IPv4)[0].flavour)
	}
	return "iptables-" + string(b.toolsOf(iptables.IPv4)[0].flavour)
}

// tableView maps each tool to the tables that it lists in the namespace.
type tableView map[tool][]saved

// readTables reads the tables of all tools.
func (b *Backend) readTables(ctx context.Context) (tableView, error) {
	s := tableView{}
	for _, t := range b.tools {
		tables, err := b.tablesOf(ctx, t)
		if err != nil {
			return nil, err
		}
		s[t] = tables
	}
	return s, nil
}

// tablesOf reads the tables of one tool. It runs a legacy tool only if the namespace has legacy tables, because the tool
// could create tables.
func (b *Backend) tablesOf(ctx context.Context, t tool) ([]saved, error) {
	if t.flavour == Legacy {
		if names, err := b.ns.legacyTables(); err != nil || len(names[t.family]) == 0 {
			return nil, err
		}
	}
	text, err := b.ns.run(ctx, "", t.save)
	if err != nil {
		return nil, fmt.Errorf("reading the rules of %s: %w", t, err)
	}
	tables, err := parseSaved(text)
	if err != nil {
		return nil, fmt.Errorf("reading the rules of %s: %w", t, err)
	}
	return tables, nil
}

// sortTools sorts the tools of a family: first the one with our rules, then one with any rules, so that the flavour of a
// namespace does not change. Tables without rules do not count, because reading can create them.
func (b *Backend) sortTools(s tableView, family iptables.Families) []tool {
	tools := b.toolsOf(family)
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

// lock acquires the namespace lock, unless the caller holds it (Config.Lock). release releases an acquired lock.
func (b *Backend) lock(ctx context.Context) (release func(), err error) {
	if b.cfg.Lock != nil {
		b.ns.lock = b.cfg.Lock
		return func() {}, nil
	}
	if b.ns.lock, err = netlock.Acquire(ctx, b.cfg.NetNS); err != nil {
		return nil, err
	}
	return func() {
		b.ns.lock.Release()
		b.ns.lock = nil
	}, nil
}

// Read returns the installed rules of all flavours, in canonical form.
func (b *Backend) Read(ctx context.Context) (*iptables.Installed, error) {
	release, err := b.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := b.readTables(ctx)
	if err != nil {
		return nil, err
	}
	in := decode(s)
	if err := b.routes.SetRouting(in); err != nil {
		return nil, err
	}
	in.Rules = iptables.Canonical(in.Rules)
	return in, nil
}

func decode(s tableView) *iptables.Installed {
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
			in.Strange = append(in.Strange, fmt.Sprintf("both flavours of %s (nft and legacy) have rules of pilotfish", program(t.family)))
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
		strange = append(strange, string(guardTable)+": "+guardChain+" blocks new connections, because a change of the rules was interrupted: apply the rules again")
	}
	return chains, strange
}
