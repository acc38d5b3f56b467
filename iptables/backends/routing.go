package backends

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
	"github.com/pilotfish-mesh/pilotfish/iptables/route"
	"github.com/pilotfish-mesh/pilotfish/iptables/xt"
)

// programs is iptables with the namespace's routing, under the lock that nftables takes by itself.
type programs struct {
	*xt.Backend
	netns   int
	routing *routing
}

// iptables looks for the programs. Without routing, only rules are touched.
func (b *Backend) iptables(ctx context.Context, flavour xt.Flavour, withRouting bool) (*programs, error) {
	cfg := xt.Config{NetNS: b.cfg.NetNS, Flavour: flavour, Logger: b.cfg.Logger}
	p := &programs{netns: b.cfg.NetNS, routing: &routing{routes: b.routes, families: iptables.BothFamilies}}
	if withRouting {
		cfg.Routing = p.routing
	}
	var err error
	p.Backend, err = xt.New(ctx, cfg)
	return p, err
}

func (p *programs) locked(ctx context.Context, f func() error) error {
	release, err := namespace.Lock(ctx, p.netns)
	if err != nil {
		return err
	}
	defer release()
	return f()
}

// Apply is xt's.
func (p *programs) Apply(ctx context.Context, rules *iptables.RuleSet) error {
	p.routing.families = rules.Families
	return p.locked(ctx, func() error { return p.Backend.Apply(ctx, rules) })
}

// Clean is xt's.
func (p *programs) Clean(ctx context.Context) error {
	return p.locked(ctx, func() error { return p.Backend.Clean(ctx) })
}

// routing is what xt asks for.
type routing struct {
	routes   *route.Routes
	families iptables.Families // of the rule set that is being applied
}

// Apply brings about the routing.
func (r *routing) Apply(_ context.Context, want *iptables.Routing) (undo func() error, err error) {
	return r.routes.Replace(want, r.families)
}

// Read tells what is there.
func (r *routing) Read(context.Context) (*iptables.Routing, error) {
	found, strange, err := r.routes.Find()
	if err == nil && found == nil && len(strange) > 0 {
		err = fmt.Errorf("routing of ours is incomplete: %s", strings.Join(strange, "; "))
	}
	return found, err
}

// hasIPTables says whether iptables may have rules of ours, in either flavour.
func (b *Backend) hasIPTables(ctx context.Context) (bool, error) {
	chains, err := b.nft.ChainsOfIPTables(ctx, "ISTIO_", "PILOTFISH_")
	if err == nil && len(chains) > 0 {
		return true, nil
	}
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		return false, err
	}
	return hasLegacyTables(b.cfg.NetNS)
}
