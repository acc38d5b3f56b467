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

// forgetful is a backend that accepts every rule set and does not apply it.
type forgetful struct {
	iptables.Backend
	has     *iptables.Installed
	failure error
}

func (f *forgetful) Apply(context.Context, *iptables.RuleSet) error { return nil }

func (f *forgetful) Read(context.Context) (*iptables.Installed, error) { return f.has, f.failure }

func TestPodDoesNotStartOnAPromise(t *testing.T) {
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
	if err := applyAndVerify(t.Context(), &forgetful{has: &iptables.Installed{Rules: rules()}}, rules()); err != nil {
		t.Errorf("as it should be: %v", err)
	}
	fewer := rules()
	i := slices.IndexFunc(fewer.Chains, func(c iptables.Chain) bool { return len(c.Rules) > 1 })
	fewer.Chains[i].Rules = fewer.Chains[i].Rules[1:]
	for name, b := range map[string]*forgetful{
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

// What an endless comparison would find is not waited for.
func TestCheckHasAnEnd(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("it took too long"))
	if err := runWithTimeout(ctx, func() error { <-make(chan struct{}); return nil }); err == nil || !strings.Contains(err.Error(), "it took too long") {
		t.Errorf("%v", err)
	}
}
