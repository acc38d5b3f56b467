package cni

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// ignoringBackend is a backend that accepts every rule set and does not apply it.
type ignoringBackend struct {
	iptables.Backend
	has     *iptables.Installed
	failure error
}

func (f *ignoringBackend) Apply(context.Context, *iptables.RuleSet) error { return nil }

func (f *ignoringBackend) Read(context.Context) (*iptables.Installed, error) { return f.has, f.failure }

func TestADDFailsIfRulesAreNotInstalled(t *testing.T) {
	rules := func() *iptables.RuleSet {
		o, err := (&capture.Settings{}).Options(meshPod("web"), nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := iptables.Compile(o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := applyAndVerify(t.Context(), &ignoringBackend{has: &iptables.Installed{Rules: rules()}}, rules()); err != nil {
		t.Errorf("equal rules: %v", err)
	}
	fewer := rules()
	i := slices.IndexFunc(fewer.Chains, func(c iptables.Chain) bool { return len(c.Rules) > 1 })
	fewer.Chains[i].Rules = fewer.Chains[i].Rules[1:]
	for name, b := range map[string]*ignoringBackend{
		"nothing":          {has: &iptables.Installed{}},
		"a rule less":      {has: &iptables.Installed{Rules: fewer}},
		"something beside": {has: &iptables.Installed{Rules: rules(), Strange: []string{"a rule of others"}}},
		"silence":          {failure: errors.New("no answer")},
	} {
		if err := applyAndVerify(t.Context(), b, rules()); err == nil || !strings.Contains(err.Error(), "rule") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// CHECK does not wait for a comparison that does not end.
func TestCHECKEndsWithinItsTimeout(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("it took too long"))
	if err := runWithTimeout(ctx, func() error { <-make(chan struct{}); return nil }); err == nil || !strings.Contains(err.Error(), "it took too long") {
		t.Errorf("%v", err)
	}
}
