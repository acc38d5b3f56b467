package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packets"
)

// NotCaptured is the exit code of a validator that finds traffic not captured. Those who repair pods look for it.
const NotCaptured = 126

// Validate proves with packets alone that traffic is captured as the rule set says, for an init container that runs before
// the proxy. It does so as well as it is allowed to: with CAP_NET_ADMIN and CAP_NET_RAW all is proven, without any
// privileges what sockets of the process's own user can show. It fails if a packet arrives where it should not, or if
// nothing at all could be proven.
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

// Captured is nil if the report proves that traffic is captured.
func (r *Report) Captured() error {
	if err := r.Err(); err != nil {
		return err
	}
	if r.Proven() == 0 {
		return &Mismatch{append([]string{"nothing could be proven"}, r.Unproven...)}
	}
	return nil
}

// proveBySockets shows what can be without privileges.
func (r *Report) proveBySockets(ctx context.Context, cfg Config) error {
	sockets, err := packets.OpenSockets(cfg.lab(), captures(cfg.Want))
	if err != nil {
		return fmt.Errorf("send packets: %w", err)
	}
	at, err := placeOf(sockets)
	if err != nil {
		return errors.Join(err, sockets.Close())
	}
	s := newSampler(cfg.Want, at, packets.SenderIn(cfg.NetNS))
	s.indoors = true
	all, _ := s.samples(ctx)
	proofs, err := send(ctx, cfg.Want, sockets, all)
	if err == nil {
		err = again(ctx, cfg.Want, sockets, all, proofs)
	}
	r.Proofs = append(r.Proofs, proofs...)
	for i := range r.Proofs {
		r.Proofs[i].unwatched(all[i])
	}
	r.Unproven = append(unproven(cfg.Want, r.Proofs), s.unseen()...) // that there is no Lab is in them
	return errors.Join(err, sockets.Close())
}

// captures are the ports that redirection leads to.
func captures(rules *iptables.RuleSet) (all []uint16) {
	for _, c := range rules.Chains {
		for _, r := range c.Rules {
			if r.Verdict.Port != 0 && !slices.Contains(all, r.Verdict.Port) {
				all = append(all, r.Verdict.Port)
			}
		}
	}
	return all
}

// unwatched judges a packet that arrived at none of the sockets. One for a transparent proxy is dropped by the kernel, as
// no socket may be opened for it: that it did not arrive elsewhere is what can be seen of capture. One to the outside that
// should have been captured went there.
func (p *Proof) unwatched(s sample) {
	if p.Unproven != "" || p.got.end != iptables.Dropped && p.got.end != iptables.Refused {
		return
	}
	switch {
	case p.want.end == iptables.Transparent && p.got.end == iptables.Dropped:
		p.OK, p.Consequence, p.Got = true, "", "kept for the transparent proxy"
	case p.want.end == iptables.Redirected && s.Interface != "lo":
		p.Got = "not seen at that port"
		p.Consequence = p.Subject + " " + consequence(p.Rule, p.want, fate{end: iptables.Passes})
	}
}
