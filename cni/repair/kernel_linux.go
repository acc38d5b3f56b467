package repair

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/nftables"

	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
	"github.com/pilotfish-mesh/pilotfish/iptables/xt"
)

// Kernel is the Redirection by nftables over netlink.
type Kernel struct{}

// Look reads the rules back and compares them with what they have to be.
func (k Kernel) Look(ctx context.Context, s *sandbox.Sandbox, o iptables.Options) (Evidence, error) {
	want, err := iptables.Compile(o)
	if err != nil {
		return Evidence{State: Unknown}, err
	}
	backend, err := nft.New(nft.Config{NetNS: int(s.NetNS.Fd())})
	if err != nil {
		return Evidence{State: Unknown}, err
	}
	got, err := backend.Read(ctx)
	if err != nil {
		return Evidence{State: Unknown}, fmt.Errorf("reading the rules: %w", err)
	}
	if got.Rules == nil {
		return absent(ctx, s)
	}
	evidence := Evidence{State: Intact}
	for _, d := range iptables.Diff(want, got) {
		evidence.State = Drifted
		evidence.Differences = append(evidence.Differences, d.String())
	}
	return evidence, nil
}

// absent tells a pod that nobody redirects from one that somebody else does: by chains of the names that Istio's have,
// which its plugin and its init container make by nftables or either iptables.
func absent(ctx context.Context, s *sandbox.Sandbox) (Evidence, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(int(s.NetNS.Fd())))
	if err != nil {
		return Evidence{State: Unknown}, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return Evidence{State: Unknown}, fmt.Errorf("listing the chains of others: %w", err)
	}
	for _, c := range chains {
		if strings.HasPrefix(c.Name, "ISTIO_") || strings.HasPrefix(c.Table.Name, "istio-proxy-") {
			return foreign("chain " + c.Name + " of table " + c.Table.Name)
		}
	}
	legacy, err := s.HasLegacyNAT()
	if err != nil || !legacy {
		return Evidence{State: Missing, Differences: []string{"no rules are in force: the pod's traffic bypasses its proxy"}}, err
	}
	return absentFromLegacy(ctx, s)
}

func foreign(what string) (Evidence, error) {
	return Evidence{State: Foreign, Differences: []string{what + " redirects its traffic"}}, nil
}

// absentFromLegacy asks the old iptables, which only its own program shows.
func absentFromLegacy(ctx context.Context, s *sandbox.Sandbox) (Evidence, error) {
	backend, err := xt.New(ctx, xt.Config{NetNS: int(s.NetNS.Fd()), Flavour: xt.Legacy})
	if err != nil {
		return Evidence{State: Unknown}, fmt.Errorf("the pod has rules of the old iptables, which cannot be read here: %w", err)
	}
	got, err := backend.Read(ctx)
	if err != nil {
		return Evidence{State: Unknown}, fmt.Errorf("reading the rules of the old iptables: %w", err)
	}
	if got.Rules != nil || len(got.Strange) > 0 {
		return foreign("a chain of iptables-legacy")
	}
	return Evidence{State: Missing, Differences: []string{"no rules are in force: the pod's traffic bypasses its proxy"}}, nil
}

// Mend puts the rules in force.
func (k Kernel) Mend(ctx context.Context, s *sandbox.Sandbox, o iptables.Options) error {
	rules, err := iptables.Compile(o)
	if err != nil {
		return err
	}
	backend, err := nft.New(nft.Config{NetNS: int(s.NetNS.Fd())})
	if err != nil {
		return err
	}
	return backend.Apply(ctx, rules)
}
