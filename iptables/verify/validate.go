package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packettest"
)

// NotCaptured is the exit code of a validator that finds traffic not captured. Controllers that repair pods look for
// it.
const NotCaptured = 126

// Validate verifies with packets alone that traffic is captured as the rule set defines, for an init container that
// runs before the proxy. What it can verify depends on its privileges: with CAP_NET_ADMIN and CAP_NET_RAW everything,
// without them only what sockets of the process's own user can show. Report.Captured returns an error if a packet
// arrived at a wrong place or if nothing could be verified.
func Validate(ctx context.Context, cfg Config) (*Report, error) {
	began := time.Now()
	cfg.Backend = nil
	r, err := Run(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if len(r.Proofs) == 0 {
		if err := r.proveBySockets(ctx, cfg); err != nil {
			return nil, err
		}
	}
	r.Took = time.Since(began)
	return r, nil
}

// Captured returns nil if the report proves that traffic is captured.
func (r *Report) Captured() error {
	if err := r.Err(); err != nil {
		return err
	}
	if r.Proven() == 0 {
		return &Mismatch{append([]string{"nothing could be proven"}, r.Unproven...)}
	}
	return nil
}

// proveBySockets verifies what needs no privileges.
func (r *Report) proveBySockets(ctx context.Context, cfg Config) error {
	sockets, err := packettest.OpenSockets(cfg.lab(), capturePorts(cfg.Want))
	if err != nil {
		return fmt.Errorf("send packets: %w", err)
	}
	at, err := labEndpoints(sockets)
	if err != nil {
		return errors.Join(err, sockets.Close())
	}
	s := newSampler(cfg.Want, at, packettest.SenderIn(cfg.NetNS))
	s.socketsOnly = true
	all, _ := s.samples(ctx)
	proofs, err := send(ctx, cfg.Want, sockets, all)
	if err == nil {
		err = retryFailed(ctx, cfg.Want, sockets, all, proofs)
	}
	r.Proofs = append(r.Proofs, proofs...)
	for i := range r.Proofs {
		r.Proofs[i].judgeUnwatched(all[i])
	}
	r.Unproven = append(unprovenReasons(cfg.Want, r.Proofs), s.unverifiable()...) // replaces the reason why there is no harness
	return errors.Join(err, sockets.Close())
}

// capturePorts returns the ports to which the rules redirect.
func capturePorts(rules *iptables.RuleSet) (all []uint16) {
	for _, c := range rules.Chains {
		for _, r := range c.Rules {
			if r.Verdict.Port != 0 && !slices.Contains(all, r.Verdict.Port) {
				all = append(all, r.Verdict.Port)
			}
		}
	}
	return all
}

// judgeUnwatched completes the proof of a packet that arrived at none of the sockets. The kernel drops a packet for a
// transparent proxy, because no socket may be opened for it. That it did not arrive elsewhere is the only sign of its
// capture. A packet to the outside that should have been captured was sent there.
func (p *Proof) judgeUnwatched(s sample) {
	if p.Unproven != "" || p.got.end != iptables.Dropped && p.got.end != iptables.Refused {
		return
	}
	switch {
	case p.want.end == iptables.Transparent && p.got.end == iptables.Dropped:
		p.OK, p.Consequence, p.Got = true, "", "kept for the transparent proxy"
	case p.want.end == iptables.Redirected && s.Interface != "lo":
		p.Got = "not seen at that port"
		p.Consequence = p.Subject + " " + describeConsequence(p.Rule, p.want, outcome{end: iptables.Passes})
	}
}
