package redirect

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/verify"
)

// checkTraffic sends packets of every kind that the rules capture. If a packet is not captured, it fails with exit code
// 126, as Istio's validator does.
func (a *applyCommand) checkTraffic(ctx context.Context, log *slog.Logger, space namespace, rules *iptables.RuleSet) error {
	// The timeout is halved because each packet without a response is sent a second time.
	r, err := verify.Validate(ctx, verify.Config{Want: rules, NetNS: space.fd(), Timeout: a.probeTimeout / 2, Log: log})
	if err == nil {
		err = r.Captured()
	}
	if err != nil {
		return &ExitError{fmt.Errorf("this pod's traffic is not captured: %w; if the CNI plugin should redirect it, "+
			"the pod started before the plugin was installed: delete the pod, so that it is created again", err), exitNotCaptured}
	}
	for _, what := range r.Unproven {
		log.Warn("cannot prove that all traffic is captured", "unproven", what)
	}
	log.Info("traffic is captured", "packets", r.Proven(), "took", r.Took)
	return nil
}
