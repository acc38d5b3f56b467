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

// NotCaptured is the exit code of the validation if traffic is not captured. Controllers that repair pods test for it.
const NotCaptured = 126

// Validate verifies that traffic is captured as the rule set defines. It sends packets, and does not read rules. It is
// for an init container that runs before the proxy. With CAP_NET_ADMIN and CAP_NET_RAW it sends all test packets.
// Without them, it sends only packets that sockets of its own user can send and receive. Report.Captured returns the
// result.
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

// Captured returns nil if packets prove that traffic is captured. It returns an error if a packet did not arrive as
// expected, or if no packet could be sent.
func (r *Report) Captured() error {
	if err := r.Err(); err != nil {
		return err
	}
	if r.Proven() == 0 {
		return &Mismatch{append([]string{"no test packet could be sent"}, r.Unproven...)}
	}
	return nil
}

// proveBySockets sends the test packets that need no privileges.
func (r *Report) proveBySockets(ctx context.Context, cfg Config) error {
	sockets, err := packettest.OpenSockets(cfg.harness(), capturePorts(cfg.Want))
	if err != nil {
		return fmt.Errorf("sending the test packets: %w", err)
	}
	at, err := harnessEndpoints(sockets)
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
	// This replaces the reason why no harness was opened.
	r.Unproven = append(unprovenReasons(cfg.Want, r.Proofs), s.unverifiable()...)
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

// judgeUnwatched completes the proof of a packet that arrived at none of the sockets. If a transparent proxy should
// receive the packet but does not run, the kernel drops it, and an unprivileged process cannot open a transparent
// socket instead. The packet then counts as captured, because it did not arrive elsewhere. If the kernel should
// redirect a packet to the outside, but it arrived at no socket, it has left the namespace.
func (p *Proof) judgeUnwatched(s sample) {
	if p.Unproven != "" || p.got.end != iptables.Dropped && p.got.end != iptables.Refused {
		return
	}
	switch {
	case p.want.end == iptables.Transparent && p.got.end == iptables.Dropped:
		p.OK, p.Consequence, p.Got = true, "", "dropped, because the transparent proxy does not run"
	case p.want.end == iptables.Redirected && s.Interface != "lo":
		p.Got = "not received at that port"
		p.Consequence = p.Subject + " " + describeConsequence(p.Rule, p.want, outcome{end: iptables.Passes})
	}
}
