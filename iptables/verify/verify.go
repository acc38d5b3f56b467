// Package verify verifies a namespace's redirection: it reads the rules from the kernel, compares them with the
// expected rule set, and sends packets of every kind to see where they arrive.
package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packettest"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

// errRefused is the error of a socket whose connection was refused.
const errRefused = syscall.ECONNREFUSED

// Config configures a verification.
type Config struct {
	// Backend reads the installed rules. If it is nil, Run only sends packets.
	Backend iptables.Backend
	// Want is the rule set that should be installed.
	Want *iptables.RuleSet
	// NetNS is a file descriptor of the namespace; 0 or less: that of the calling thread.
	NetNS int
	// NoPackets skips the test packets.
	NoPackets bool
	// Timeout is the maximum time until a packet arrives; 0 means 1 second.
	Timeout time.Duration
	Log     *slog.Logger
}

// Run verifies a namespace. The report contains all results; an error means that the verification could not be done.
// Run leaves nothing behind, and processes of the namespace see none of its packets.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	began := time.Now()
	r := &Report{Families: cfg.Want.Families}
	if cfg.Backend != nil {
		if err := r.read(ctx, cfg); err != nil {
			return nil, err
		}
	}
	if !cfg.NoPackets {
		if err := r.sendPackets(ctx, cfg); err != nil {
			return nil, err
		}
	}
	r.Took = time.Since(began)
	return r, nil
}

func (r *Report) read(ctx context.Context, cfg Config) error {
	in, err := cfg.Backend.Read(ctx)
	if err != nil {
		return fmt.Errorf("read what is in force: %w", err)
	}
	r.Backend = cfg.Backend.Name() // may be known only after Read
	if in.Rules != nil || len(cfg.Want.Chains) > 0 || len(in.Strange) > 0 {
		r.Differences = iptables.Diff(cfg.Want, in)
	}
	return r.readForeign(ctx, cfg)
}

// readForeign reads the rules of other programs and adds notes on them, if the backend supports that.
func (r *Report) readForeign(ctx context.Context, cfg Config) (err error) {
	sees, ok := cfg.Backend.(interface {
		Foreign(context.Context) ([]iptables.ForeignChain, error)
	})
	if !ok {
		return nil
	}
	r.foreign, err = sees.Foreign(ctx)
	if errors.Is(err, xtables.ErrNoLegacySave) {
		r.Notes = append(r.Notes, "rules of other programs were not read: "+err.Error())
		err = nil
	}
	if err != nil {
		return fmt.Errorf("reading the rules of other programs: %w", err)
	}
	for _, c := range r.foreign {
		r.Notes = append(r.Notes, "rules of others see packets too: "+c.String())
	}
	return nil
}

// packetSender sends packets and observes their arrival.
type packetSender interface {
	Families() []iptables.Families
	Addresses(iptables.Families) ([]netip.Addr, error)
	Ends(iptables.Families) (near, far netip.Addr)
	Link() string
	Send(context.Context, []packettest.Packet) ([]packettest.Arrival, error)
	Close() error
}

// sendPackets sends packets through a harness. Without the permission to create one, it only records that in Unproven.
func (r *Report) sendPackets(ctx context.Context, cfg Config) error {
	lab, err := packettest.Open(ctx, cfg.lab())
	if errors.Is(err, packettest.ErrNotPermitted) {
		r.Unproven = append(r.Unproven, "no packets were sent: "+err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("send packets: %w", err)
	}
	err = r.sendPacketsIn(ctx, cfg, lab)
	return errors.Join(err, lab.Close())
}

func (cfg *Config) lab() packettest.Config {
	v := transparentVerdict(cfg.Want)
	return packettest.Config{NetNS: cfg.NetNS, Timeout: cfg.Timeout, Log: cfg.Log, TransparentMark: v.Mark, TransparentPort: v.Port}
}

// transparentVerdict returns the verdict that redirects to a transparent proxy, or the zero value if there is none.
func transparentVerdict(rules *iptables.RuleSet) (v iptables.Verdict) {
	for _, chain := range rules.Chains {
		for _, r := range chain.Rules {
			if r.Verdict.Action == iptables.TransparentProxy {
				v = r.Verdict
			}
		}
	}
	return v
}

func (r *Report) sendPacketsIn(ctx context.Context, cfg Config, lab packetSender) error {
	at, err := labEndpoints(lab)
	if err != nil {
		return err
	}
	r.Notes = append(r.Notes, uncapturedFamilies(cfg.Want, at)...)
	s := newSampler(cfg.Want, at, packettest.SenderIn(cfg.NetNS))
	s.foreign = foreignDestinations(r.foreign)
	all, left := s.samples(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if left > 0 {
		r.Unproven = append(r.Unproven, fmt.Sprintf("%d rules are more than are tested with packets", left))
	}
	proofs, err := send(ctx, cfg.Want, lab, all)
	if err != nil {
		return err
	}
	if err := retryFailed(ctx, cfg.Want, lab, all, proofs); err != nil {
		return err
	}
	zoned, err := s.proveZones(ctx, lab)
	if err != nil {
		return err
	}
	proofs = append(proofs, zoned...)
	r.Proofs = append(r.Proofs, proofs...)
	r.Unproven = append(append(r.Unproven, unprovenReasons(cfg.Want, proofs)...), s.unverifiable()...)
	return nil
}

// uncapturedFamilies returns a note for each family in which the namespace has its own address but that the rules do
// not handle.
func uncapturedFamilies(want *iptables.RuleSet, at endpoints) (all []string) {
	for _, f := range at.families() {
		if want.Families&f == 0 && at.own[f] != at.near[f] {
			all = append(all, fmt.Sprintf("%s traffic bypasses the proxy: the namespace has the address %s, and the rules are for %s alone", f, at.own[f], want.Families))
		}
	}
	return all
}

func labEndpoints(lab packetSender) (endpoints, error) {
	p := endpoints{link: lab.Link(), own: map[iptables.Families]netip.Addr{}, near: map[iptables.Families]netip.Addr{},
		far: map[iptables.Families]netip.Addr{}}
	for _, f := range lab.Families() {
		own, err := lab.Addresses(f)
		if err != nil {
			return p, err
		}
		p.own[f] = own[0]
		p.near[f], p.far[f] = lab.Ends(f)
	}
	return p, nil
}

// send sends the samples and compares their outcomes with the rules.
func send(ctx context.Context, want *iptables.RuleSet, lab packetSender, all []sample) ([]Proof, error) {
	sent := make([]packettest.Packet, len(all))
	for i, s := range all {
		sent[i] = s.packet()
	}
	arrivals, err := lab.Send(ctx, sent)
	if err != nil {
		return nil, fmt.Errorf("send packets: %w", err)
	}
	proofs := make([]Proof, len(all))
	for i, s := range all {
		proofs[i] = judge(s, iptables.Explain(want, s.Packet), arrivals[i])
	}
	return proofs, nil
}

// retryFailed resends the packets that did not arrive as expected. A busy machine can cause a timeout, whereas a wrong
// rule fails twice.
func retryFailed(ctx context.Context, want *iptables.RuleSet, lab packetSender, all []sample, proofs []Proof) error {
	var failed []sample
	var at []int
	for i, p := range proofs {
		if !p.OK && p.Unproven == "" {
			failed, at = append(failed, all[i]), append(at, i)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	second, err := send(ctx, want, lab, failed)
	for i, p := range second {
		proofs[at[i]] = p
	}
	return err
}

func (s *sample) packet() packettest.Packet {
	p := packettest.Packet{Inbound: s.Direction == iptables.Inbound, Protocol: s.Protocol, Destination: s.To, SourcePort: s.sourcePort, Interface: s.via,
		Answered: s.answered, Answerer: s.answerer}
	if p.Inbound {
		return p
	}
	p.UID, p.GID, p.Mark = *s.UID, *s.GID, s.Mark
	if s.From.Addr() != s.To.Addr() {
		p.Source = s.From.Addr()
	}
	return p
}

// unprovenReasons returns the distinct reasons why packets could not be sent, and the interfaces without test packets.
func unprovenReasons(want *iptables.RuleSet, proofs []Proof) (all []string) {
	add := func(text string) {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	for _, p := range proofs {
		if p.Unproven != "" {
			add(p.Unproven)
		}
	}
	for _, c := range want.Chains {
		for _, r := range c.Rules {
			for _, name := range []string{r.Match.InInterface, r.Match.OutInterface} {
				if name != "" && name != "lo" && !slices.ContainsFunc(proofs, func(p Proof) bool { return p.via == name }) {
					add("traffic of the interface " + name + ": no packets were sent as if they were its")
				}
			}
		}
	}
	return all
}
