package redirect

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/verify"
)

// prove sends packets of every kind, and fails with the contract's exit code where one does not arrive where it should.
func (a *apply) prove(ctx context.Context, log *slog.Logger, space namespace, rules *iptables.RuleSet) error {
	// What does not arrive is sent a second time.
	r, err := verify.Validate(ctx, verify.Config{Want: rules, NetNS: space.fd(), Timeout: a.probeTimeout / 2, Log: log})
	if err == nil {
		err = r.Captured()
	}
	if err != nil {
		return &ExitError{fmt.Errorf("this pod's traffic is not captured as it should be: %w; if the CNI plugin is to do it, "+
			"the pod started before the plugin was there: delete the pod", err), exitNotCaptured}
	}
	for _, what := range r.Unproven {
		log.Warn("it could not be proven that all traffic is captured", "what", what)
	}
	log.Info("traffic is captured", "packets", r.Proven(), "took", r.Took)
	return nil
}
