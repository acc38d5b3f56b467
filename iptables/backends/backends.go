// Package backends selects the back end that installs rules in a network namespace: nftables if the kernel supports it,
// else the host's iptables. It removes our rules from the back end that is not used.
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
	IPTables       Choice = "iptables" // of the flavour that is found
	IPTablesLegacy Choice = "legacy"
	IPTablesNFT    Choice = "nft"
)

// ParseChoice parses Istio's settings: the forced binary, and whether native nftables is enabled.
func ParseChoice(forceBinary string, nativeNFTables bool) (Choice, error) {
	switch c := Choice(forceBinary); {
	case c != Auto && c != IPTablesLegacy && c != IPTablesNFT:
		return Auto, fmt.Errorf("--force-iptables-binary %q: use \"legacy\" or \"nft\", or omit it for nftables without a binary", forceBinary)
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
	// NetNS is a descriptor of the network namespace, which must stay open as long as the back end is used; 0 or less
	// selects the calling thread's.
	NetNS  int
	Choice Choice
	// Logger logs the choice and its reason; nil discards the log.
	Logger *slog.Logger
	// Inject is for tests. It is called before each step of a change; an error makes the step fail.
	Inject func(step string) error
}

// Backend is the selected back end. It also cleans the other one.
type Backend struct {
	cfg       Config
	routes    *route.Routes
	nft       *nft.Backend
	rulesOnly *nft.Backend // does not touch routing
	used      iptables.Backend
}

var _ iptables.Backend = (*Backend)(nil)

// New returns the back end of a namespace. It does not search for programs until they are needed.
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

// lockedBackend is the back end while the namespace lock is held.
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

// Name returns the name of the back end that was used last, or of the one that would be tried first.
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

// Apply installs the rules and removes those of the other back end, which are harmless meanwhile: the first rule that
// matches captures a packet. The namespace lock is held throughout. Otherwise two processes that apply with different
// back ends could each remove what the other has just installed.
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

// restoreState restores the previous state of a back end.
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

// Read returns the installed rules, of either back end.
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
		hasIPTables = t.hasReadableIPTables // our rules were found already
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
		in.Strange = append(in.Strange, "pilotfish's rules are installed in both iptables and nftables: apply again to remove one of them")
	case in == nil || in.Rules == nil:
		b.used, in = x, other
	}
	return in, nil
}

// Foreign returns the chains of other programs in nftables and in legacy iptables. An implementation that the kernel
// lacks has none. If legacy tables exist and no installed program can read them, it returns the chains of nftables with
// xtables.ErrNoLegacySave.
func (b *Backend) Foreign(ctx context.Context) ([]iptables.ForeignChain, error) {
	all, err := b.nft.Foreign(ctx)
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return nil, err
	}
	legacy, err := xtables.ForeignLegacyChains(ctx, b.cfg.NetNS)
	return append(all, legacy...), err
}

func holdsChains(in *iptables.Installed) bool { return in.Rules != nil && len(in.Rules.Chains) > 0 }

// Clean removes our rules of both back ends, and our routing.
func (b *Backend) Clean(ctx context.Context) error {
	t, err := b.acquire(ctx)
	if err != nil {
		return err
	}
	defer t.Release()
	there, err := t.hasReadableIPTables(ctx) // queried first, because the kernel's reply is delayed after a removal
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

// Heal removes routing without rules, which an Apply leaves behind if it is killed at that point. Installed rules and
// their routing remain.
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

// iptables finds the programs.
func (b *lockedBackend) iptables(ctx context.Context, flavour xtables.Flavour, rulesOnly bool) (*xtables.Backend, error) {
	return xtables.New(ctx, xtables.Config{NetNS: b.cfg.NetNS, Flavour: flavour, RulesOnly: rulesOnly, Lock: b.Lock, Logger: b.cfg.Logger, Inject: b.cfg.Inject})
}

// ownPrefixes lists the prefixes of our chains' names.
var ownPrefixes = []string{"ISTIO_", "PILOTFISH_"}

// hasIPTables reports whether iptables may hold our rules, in either flavour. It returns xtables.ErrNoLegacySave if
// legacy tables exist and no installed program can read them.
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

// hasReadableIPTables is like hasIPTables, but ignores legacy tables that no installed program can read, with a warning.
// They usually belong to other programs, and must not prevent a change of the rules in nftables.
func (b *lockedBackend) hasReadableIPTables(ctx context.Context) (bool, error) {
	found, err := b.hasIPTables(ctx)
	if errors.Is(err, xtables.ErrNoLegacySave) {
		b.cfg.Logger.Warn("tables of iptables-legacy were not checked for earlier redirection rules", "error", err)
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
