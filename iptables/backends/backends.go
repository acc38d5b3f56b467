// Package backends chooses who puts rules in force in a network namespace: nftables where the kernel has it, the host's
// iptables otherwise. Whoever it is, what the other one has of ours goes.
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
	"github.com/pilotfish-mesh/pilotfish/iptables/xt"
)

// Choice is who is to put rules in force.
type Choice string

// The choices. The last two are what --force-iptables-binary takes.
const (
	Auto           Choice = ""         // nftables, or iptables where the kernel has no nftables for the rules
	NFTables       Choice = "nftables" // nothing else
	IPTables       Choice = "iptables" // of the flavour that is found
	IPTablesLegacy Choice = "legacy"
	IPTablesNFT    Choice = "nft"
)

// ParseChoice reads the settings of the contract: the binary that is forced, and whether nftables is asked for.
func ParseChoice(forceBinary string, nativeNFTables bool) (Choice, error) {
	switch c := Choice(forceBinary); {
	case c != Auto && c != IPTablesLegacy && c != IPTablesNFT:
		return Auto, fmt.Errorf("--force-iptables-binary %q: it is \"legacy\" or \"nft\"; leave it out to have nftables, without a binary", forceBinary)
	case c != Auto && nativeNFTables:
		return Auto, fmt.Errorf("--force-iptables-binary %s and --native-nftables exclude each other: leave one out", forceBinary)
	case nativeNFTables:
		return NFTables, nil
	default:
		return c, nil
	}
}

// Config is what a back end needs to know.
type Config struct {
	// NetNS is a descriptor of the network namespace, which stays open as long as the back end is used; 0 or less is that
	// of the calling thread.
	NetNS  int
	Choice Choice
	// Logger is told what is chosen and why; nil: nobody.
	Logger *slog.Logger
	// Inject is for tests: it is called before each step of a change, which fails where it returns an error.
	Inject func(step string) error
}

// Backend is the one that was chosen, and minds the other.
type Backend struct {
	cfg    Config
	routes *route.Routes
	nft    *nft.Backend
	alone  *nft.Backend // leaves routing alone
	used   iptables.Backend
}

var _ iptables.Backend = (*Backend)(nil)

// New gives the back end of a namespace. It looks for no program before it is needed.
func New(cfg Config) (*Backend, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Backend{cfg: cfg, routes: route.New(route.Config{NetNS: cfg.NetNS, Inject: cfg.Inject})}
	var err error
	if b.nft, err = nft.New(nft.Config{NetNS: cfg.NetNS, Inject: cfg.Inject}); err != nil {
		return nil, err
	}
	b.alone, err = nft.New(nft.Config{NetNS: cfg.NetNS, RulesOnly: true, Inject: cfg.Inject})
	return b, err
}

// turn is the back end in a turn at its namespace.
type turn struct {
	*Backend
	*namespace.Turn
	legacy     legacy
	routes     *route.Routes
	nft, alone *nft.Backend
}

func (b *Backend) take(ctx context.Context) (*turn, error) {
	t := &turn{Backend: b}
	var err error
	if t.Turn, err = namespace.Take(ctx, b.cfg.NetNS, t.legacy.open); err != nil {
		t.legacy.close()
		return nil, err
	}
	t.routes, t.nft, t.alone = b.routes.In(t.Turn), b.nft.In(t.Turn), b.alone.In(t.Turn)
	return t, nil
}

// End gives back all that the turn has.
func (b *turn) End() {
	b.legacy.close()
	b.Turn.End()
}

// Name is that of the back end that was used last; before that, of the one that would be tried first.
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

// Apply puts the rules in force and takes the other back end's away, which do no harm meanwhile: whoever is first
// captures a packet. All of it is one turn of the namespace's lock: otherwise two who apply by different back ends could
// each take away what the other has just put in force.
func (b *Backend) Apply(ctx context.Context, rules *iptables.RuleSet) error {
	t, err := b.take(ctx)
	if err != nil {
		return err
	}
	defer t.End()
	if b.cfg.Choice == Auto || b.cfg.Choice == NFTables {
		err := t.applyNFTables(ctx, rules)
		if b.cfg.Choice == NFTables || !errors.Is(err, nft.ErrUnsupported) {
			return err
		}
		b.cfg.Logger.Info("nftables does not do: trying iptables", "error", err)
		if second := t.applyIPTables(ctx, rules); second != nil {
			return errors.Join(err, second)
		}
		return nil
	}
	return t.applyIPTables(ctx, rules)
}

func (b *turn) applyNFTables(ctx context.Context, rules *iptables.RuleSet) error {
	there, err := b.hasIPTables(ctx)
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
		return errors.Join(fmt.Errorf("take away the rules that iptables had of ours: %w", err), back(ctx, b.nft, before))
	}
	return nil
}

func (b *turn) applyIPTables(ctx context.Context, rules *iptables.RuleSet) error {
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
		return errors.Join(fmt.Errorf("take away the rules that nftables had of ours: %w", err), back(ctx, x, before))
	}
	return nil
}

// back puts a back end into the state that it was in.
func back(ctx context.Context, b iptables.Backend, before *iptables.Installed) error {
	if before.Rules == nil {
		return b.Clean(ctx)
	}
	return b.Apply(ctx, before.Rules)
}

func flavourOf(c Choice) xt.Flavour {
	switch c {
	case IPTablesLegacy:
		return xt.Legacy
	case IPTablesNFT:
		return xt.NFT
	}
	return ""
}

// Read gives what is in force by whichever back end.
func (b *Backend) Read(ctx context.Context) (*iptables.Installed, error) {
	t, err := b.take(ctx)
	if err != nil {
		return nil, err
	}
	defer t.End()
	in, err := t.nft.Read(ctx)
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return nil, err
	}
	there, err := t.hasIPTables(ctx)
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
		in.Strange = append(in.Strange, "rules of ours by iptables too, beside those of nftables: apply again to have one of them")
	case in == nil || in.Rules == nil:
		b.used, in = x, other
	}
	return in, nil
}

// Foreign tells of chains of others, in nftables and in the legacy flavour of iptables. A kernel that has one of them not
// has none there.
func (b *Backend) Foreign(ctx context.Context) ([]iptables.ForeignChain, error) {
	all, err := b.nft.Foreign(ctx)
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return nil, err
	}
	legacy, err := foreignLegacy(b.cfg.NetNS)
	return append(all, legacy...), err
}

func holdsChains(in *iptables.Installed) bool { return in.Rules != nil && len(in.Rules.Chains) > 0 }

// Clean takes away what either back end has of ours, and routing.
func (b *Backend) Clean(ctx context.Context) error {
	t, err := b.take(ctx)
	if err != nil {
		return err
	}
	defer t.End()
	there, err := t.hasIPTables(ctx) // before: the kernel answers late after something was taken away
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

// Heal takes away routing that is there without rules, as an Apply leaves it that is killed just then. Rules that are in
// force stay, with their routing.
func (b *Backend) Heal(ctx context.Context) error {
	t, err := b.take(ctx)
	if err != nil {
		return err
	}
	defer t.End()
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

// iptables looks for the programs.
func (b *turn) iptables(ctx context.Context, flavour xt.Flavour, rulesOnly bool) (*xt.Backend, error) {
	return xt.New(ctx, xt.Config{NetNS: b.cfg.NetNS, Flavour: flavour, RulesOnly: rulesOnly, Turn: b.Turn, Logger: b.cfg.Logger, Inject: b.cfg.Inject})
}

// ownPrefixes begin the names of our chains.
var ownPrefixes = []string{"ISTIO_", "PILOTFISH_"}

// hasIPTables says whether iptables may have rules of ours, in either flavour.
func (b *turn) hasIPTables(ctx context.Context) (bool, error) {
	chains, err := b.nft.ChainsOfIPTables(ctx, ownPrefixes...)
	if err == nil && len(chains) > 0 {
		return true, nil
	}
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return false, err
	}
	return b.legacy.hasRules(b.cfg.NetNS, ownPrefixes...)
}

// cleanIPTables takes away what iptables has of ours.
func (b *turn) cleanIPTables(ctx context.Context, rulesOnly bool) error {
	x, err := b.iptables(ctx, "", rulesOnly)
	if err != nil {
		return err
	}
	return x.Clean(ctx)
}
