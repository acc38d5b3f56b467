package repair

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/verify"
)

// Kernel is the Redirection that reads and installs rules in the kernel's packet filter (nftables or iptables).
type Kernel struct {
	Choice backends.Choice // the same backend as in the plugin's configuration
	Logger *slog.Logger
}

func (k Kernel) plan(s *sandbox.Sandbox, o iptables.Options) (*iptables.RuleSet, iptables.Backend, error) {
	want, err := iptables.Compile(o)
	if err != nil {
		return nil, nil, err
	}
	backend, err := backends.New(backends.Config{NetNS: int(s.NetNS.Fd()), Choice: k.Choice, Logger: k.Logger})
	return want, backend, err
}

// Check compares the installed rules with those that the options require. If they are equal and prove is set, it also
// sends test packets.
func (k Kernel) Check(ctx context.Context, s *sandbox.Sandbox, o iptables.Options, prove bool) (CheckResult, error) {
	want, backend, err := k.plan(s, o)
	if err != nil {
		return CheckResult{State: Unknown}, err
	}
	got, err := backend.Read(ctx)
	switch {
	case err != nil:
		return CheckResult{State: Unknown}, fmt.Errorf("reading the rules: %w", err)
	case got.Rules == nil && len(got.Strange) == 0:
		return classifyMissing(s)
	case !isOurs(got.Rules):
		return foreign("iptables chains of another program")
	}
	evidence := CheckResult{State: Intact}
	for _, d := range iptables.Diff(want, got) {
		evidence.State = Drifted
		evidence.Differences = append(evidence.Differences, d.String())
	}
	if prove && evidence.State == Intact {
		return k.prove(ctx, s, want)
	}
	return evidence, nil
}

// isOurs reports whether pilotfish installed the rules. They then have comments with IDs. Istio's chains have the same
// names, but no such comments.
func isOurs(rules *iptables.RuleSet) bool {
	return rules != nil && slices.ContainsFunc(rules.Chains, func(c iptables.Chain) bool {
		return slices.ContainsFunc(c.Rules, func(r iptables.Rule) bool { return r.ID != "" })
	})
}

// prove verifies the rules with test packets.
func (k Kernel) prove(ctx context.Context, s *sandbox.Sandbox, want *iptables.RuleSet) (CheckResult, error) {
	report, err := verify.Run(ctx, verify.Config{Want: want, NetNS: int(s.NetNS.Fd()), Log: k.Logger})
	if err != nil {
		return CheckResult{State: Unknown}, err
	}
	if err := report.Err(); err != nil {
		return CheckResult{State: Drifted, Differences: []string{err.Error()}}, nil
	}
	return CheckResult{State: Intact}, nil
}

// classifyMissing returns the state of a pod without pilotfish's rules: Foreign if Istio's nftables rules redirect its
// traffic, otherwise Missing.
func classifyMissing(s *sandbox.Sandbox) (CheckResult, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(int(s.NetNS.Fd())))
	if err != nil {
		return CheckResult{State: Unknown}, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return CheckResult{State: Unknown}, fmt.Errorf("listing the chains of other programs: %w", err)
	}
	for _, c := range chains {
		if strings.HasPrefix(c.Name, "ISTIO_") || strings.HasPrefix(c.Table.Name, "istio-proxy-") {
			return foreign("chain " + c.Name + " of table " + c.Table.Name)
		}
	}
	return CheckResult{State: Missing, Differences: []string{"no redirection rules are installed"}}, nil
}

// foreign returns the result for a pod whose traffic another program redirects. what describes the rules that were
// found.
func foreign(what string) (CheckResult, error) {
	return CheckResult{State: Foreign, Differences: []string{what + ": another program redirects the pod's traffic"}}, nil
}

// Repair installs the rules for the options.
func (k Kernel) Repair(ctx context.Context, s *sandbox.Sandbox, o iptables.Options) error {
	want, backend, err := k.plan(s, o)
	if err != nil {
		return err
	}
	return backend.Apply(ctx, want)
}
