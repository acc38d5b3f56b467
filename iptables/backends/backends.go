// Package backends selects the back end that installs rules in a network namespace: nftables if the kernel supports it,
// else the host's iptables. After the installation with one back end, the package removes our rules from the other.
package backends

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
	"github.com/pilotfish-mesh/pilotfish/iptables/route"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

// Choice selects the back end.
type Choice string

// The choices. The last two are the values of --force-iptables-binary.
const (
	Auto           Choice = ""         // nftables, or iptables if the kernel's nftables does not support the rules
	NFTables       Choice = "nftables" // only nftables
	IPTables       Choice = "iptables" // the host's iptables, of either flavour
	IPTablesLegacy Choice = "legacy"
	IPTablesNFT    Choice = "nft"
)

// ParseChoice parses Istio's settings: the value of --force-iptables-binary, and whether --native-nftables is set.
func ParseChoice(forceBinary string, nativeNFTables bool) (Choice, error) {
	switch c := Choice(forceBinary); {
	case c != Auto && c != IPTablesLegacy && c != IPTablesNFT:
		return Auto, fmt.Errorf("--force-iptables-binary %q: use \"legacy\" or \"nft\", or omit the flag to use nftables without iptables programs", forceBinary)
	case c != Auto && nativeNFTables:
		return Auto, fmt.Errorf("--force-iptables-binary %s and --native-nftables are mutually exclusive: omit one", forceBinary)
	case nativeNFTables:
		return NFTables, nil
	default:
		return c, nil
	}
}

// Config configures a back end.
type Config struct {
	// NetNS is a file descriptor of the network namespace. It must remain open while the back end is used. 0 or less selects
	// the calling thread's namespace.
	NetNS  int
	Choice Choice
	// Logger logs the selection of the back end and its reason; nil discards the log.
	Logger *slog.Logger
	// Inject is for tests. It is called before each step of a change. If it returns an error, the step fails.
	Inject func(step string) error
}

// Backend is an iptables.Backend that uses the selected back end, and removes our rules from the other one.
type Backend struct {
	cfg       Config
	routes    *route.Routes
	nft       *nft.Backend
	rulesOnly *nft.Backend // neither reads nor changes routing
	used      iptables.Backend
}

var _ iptables.Backend = (*Backend)(nil)

// New returns the back end of a namespace. It searches for iptables programs only when it needs them.
func New(cfg Config) (*Backend, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Backend{cfg: cfg, routes: route.New(route.Config{NetNS: cfg.NetNS, Inject: cfg.Inject})}
	var err error
	if b.nft, err = nft.New(nft.Config{NetNS: cfg.NetNS, Inject: cfg.Inject}); err != nil {
		return nil, err
	}
	b.rulesOnly, err = nft.New(nft.Config{NetNS: cfg.NetNS, RulesOnly: true, Inject: cfg.Inject})
	return b, err
}

// lockedBackend is a Backend that holds the namespace lock.
type lockedBackend struct {
	*Backend
	*namespace.Lock
	routes     *route.Routes
	nft, alone *nft.Backend
}

func (b *Backend) acquire(ctx context.Context) (*lockedBackend, error) {
	t := &lockedBackend{Backend: b}
	var err error
	if t.Lock, err = namespace.Acquire(ctx, b.cfg.NetNS); err != nil {
		return nil, err
	}
	t.routes, t.nft, t.alone = b.routes.WithLock(t.Lock), b.nft.WithLock(t.Lock), b.rulesOnly.WithLock(t.Lock)
	return t, nil
}

// Name returns the name of the back end that was used last. Before the first use, it returns the name of the one that
// is tried first.
func (b *Backend) Name() string {
	switch {
	case b.used != nil:
		return b.used.Name()
	case b.cfg.Choice == Auto, b.cfg.Choice == NFTables:
		return nft.Name
	case b.cfg.Choice == IPTables:
		return "iptables"
	}
	return "iptables-" + string(b.cfg.Choice)
}

// Apply installs the rules, and then removes our rules from the other back end. While both have rules, a packet is
// captured by the first rule that matches. Apply holds the namespace lock during the whole change. Without it, two
// processes that use different back ends could remove each other's new rules.
func (b *Backend) Apply(ctx context.Context, rules *iptables.RuleSet) error {
	t, err := b.acquire(ctx)
	if err != nil {
		return err
	}
	defer t.Release()
	if b.cfg.Choice == Auto || b.cfg.Choice == NFTables {
		err := t.applyNFTables(ctx, rules)
		if b.cfg.Choice == NFTables || !errors.Is(err, nft.ErrUnsupported) {
			return err
		}
		b.cfg.Logger.Info("nftables does not support the rules: trying iptables", "error", err)
		if second := t.applyIPTables(ctx, rules); second != nil {
			return errors.Join(err, second)
		}
		return nil
	}
	return t.applyIPTables(ctx, rules)
}

func (b *lockedBackend) applyNFTables(ctx context.Context, rules *iptables.RuleSet) error {
	there, err := b.hasReadableIPTables(ctx)
	if err != nil {
		return err
	}
	if !there {
		b.used = b.nft
		return b.nft.Apply(ctx, rules)
	}
	before, err := b.nft.Read(ctx)
	if err != nil {
		return err
	}
	if err := b.nft.Apply(ctx, rules); err != nil {
		return err
	}
	b.used = b.nft
	if err := b.cleanIPTables(ctx, true); err != nil {
		return errors.Join(fmt.Errorf("removing pilotfish's rules from iptables: %w", err), restoreState(ctx, b.nft, before))
	}
	return nil
}

func (b *lockedBackend) applyIPTables(ctx context.Context, rules *iptables.RuleSet) error {
	x, err := b.iptables(ctx, flavourOf(b.cfg.Choice), false)
	if err != nil {
		return err
	}
	before, err := x.Read(ctx)
	if err != nil {
		return err
	}
	if err := x.Apply(ctx, rules); err != nil {
		return err
	}
	b.used = x
	if err := b.alone.Clean(ctx); err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return errors.Join(fmt.Errorf("removing pilotfish's rules from nftables: %w", err), restoreState(ctx, x, before))
	}
	return nil
}

// restoreState installs before, the rules that b had earlier. If before contains none, it removes our rules.
func restoreState(ctx context.Context, b iptables.Backend, before *iptables.Installed) error {
	if before.Rules == nil {
		return b.Clean(ctx)
	}
	return b.Apply(ctx, before.Rules)
}

func flavourOf(c Choice) xtables.Flavour {
	switch c {
	case IPTablesLegacy:
		return xtables.Legacy
	case IPTablesNFT:
		return xtables.NFT
	}
	return ""
}

// Read returns the installed rules of either back end.
func (b *Backend) Read(ctx context.Context) (*iptables.Installed, error) {
	t, err := b.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer t.Release()
	in, err := t.nft.Read(ctx)
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return nil, err
	}
	hasIPTables := t.hasIPTables
	if in != nil && in.Rules != nil {
		// Our rules were already found in nftables, so unreadable tables of iptables-legacy only cause a warning.
		hasIPTables = t.hasReadableIPTables
	}
	there, err := hasIPTables(ctx)
	if err != nil {
		return nil, err
	}
	if !there {
		if in == nil {
			in = &iptables.Installed{}
		}
		return in, nil
	}
	x, err := t.iptables(ctx, "", false)
	if err != nil {
		return nil, err
	}
	other, err := x.Read(ctx)
	switch {
	case err != nil:
		return nil, err
	case in != nil && in.Rules != nil && holdsChains(other):
		in.Strange = append(in.Strange, "pilotfish's rules are installed in both iptables and nftables: apply the rules again to remove those of one back end")
	case in == nil || in.Rules == nil:
		b.used, in = x, other
	}
	return in, nil
}

// Foreign returns the chains of other programs in nftables and iptables-legacy. If tables of iptables-legacy exist and no
// installed program can read them, it returns the chains of nftables and xtables.ErrNoLegacySave.
func (b *Backend) Foreign(ctx context.Context) ([]iptables.ForeignChain, error) {
	all, err := b.nft.Foreign(ctx)
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return nil, err
	}
	legacy, err := xtables.ForeignLegacyChains(ctx, b.cfg.NetNS)
	return append(all, legacy...), err
}

func holdsChains(in *iptables.Installed) bool { return in.Rules != nil && len(in.Rules.Chains) > 0 }

// Clean removes our rules from both back ends, and our routing.
func (b *Backend) Clean(ctx context.Context) error {
	t, err := b.acquire(ctx)
	if err != nil {
		return err
	}
	defer t.Release()
	there, err := t.hasReadableIPTables(ctx) // query first, because the kernel's reply is delayed after a removal
	if err != nil {
		return err
	}
	var errs []error
	if err := t.nft.Clean(ctx); errors.Is(err, nft.ErrUnsupported) {
		_, err := t.routes.Prune(nil, 0)
		errs = append(errs, err)
	} else {
		errs = append(errs, err)
	}
	if there {
		errs = append(errs, t.cleanIPTables(ctx, false))
	}
	return errors.Join(errs...)
}

// Heal removes our routing if none of our rules is installed. Such routing remains if a process is killed during Apply.
func (b *Backend) Heal(ctx context.Context) error {
	t, err := b.acquire(ctx)
	if err != nil {
		return err
	}
	defer t.Release()
	in, err := t.nft.Read(ctx)
	if err != nil && !errors.Is(err, nft.ErrUnsupported) || in != nil && in.Rules != nil {
		return err
	}
	if there, err := t.hasIPTables(ctx); err != nil || there {
		return err
	}
	_, err = t.routes.Prune(nil, 0)
	return err
}

// iptables returns the iptables back end. It fails if no iptables programs are installed.
func (b *lockedBackend) iptables(ctx context.Context, flavour xtables.Flavour, rulesOnly bool) (*xtables.Backend, error) {
	return xtables.New(ctx, xtables.Config{NetNS: b.cfg.NetNS, Flavour: flavour, RulesOnly: rulesOnly, Lock: b.Lock, Logger: b.cfg.Logger, Inject: b.cfg.Inject})
}

// ownPrefixes lists the prefixes of the names of our chains in iptables.
var ownPrefixes = []string{"ISTIO_", "PILOTFISH_"}

// hasIPTables reports whether iptables has chains with our names, in either flavour. It returns xtables.ErrNoLegacySave if
// tables of iptables-legacy exist and no installed program can read them.
func (b *lockedBackend) hasIPTables(ctx context.Context) (bool, error) {
	chains, err := b.nft.ChainsOfIPTables(ctx, ownPrefixes...)
	if err == nil && len(chains) > 0 {
		return true, nil
	}
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return false, err
	}
	return xtables.HasLegacyChains(ctx, b.cfg.NetNS)
}

// hasReadableIPTables is like hasIPTables. If no installed program can read the legacy tables, however, it only logs a
// warning. These tables usually belong to other programs, and must not prevent a change of the nftables rules.
func (b *lockedBackend) hasReadableIPTables(ctx context.Context) (bool, error) {
	found, err := b.hasIPTables(ctx)
	if errors.Is(err, xtables.ErrNoLegacySave) {
		b.cfg.Logger.Warn("the tables of iptables-legacy cannot be checked for earlier redirection rules", "error", err)
		return false, nil
	}
	return found, err
}

// cleanIPTables removes our rules from iptables.
func (b *lockedBackend) cleanIPTables(ctx context.Context, rulesOnly bool) error {
	x, err := b.iptables(ctx, "", rulesOnly)
	if err != nil {
		return err
	}
	return x.Clean(ctx)
}
