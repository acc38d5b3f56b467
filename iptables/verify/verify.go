// Package verify proves that a namespace's redirection is what it should be: it reads back what the kernel has, compares
// it with the rule set, and sends packets of every kind to see where they arrive.
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
	"github.com/pilotfish-mesh/pilotfish/iptables/packets"
)

// refused is what the kernel tells a socket whose connection was refused.
const refused = syscall.ECONNREFUSED

// Config is what is verified.
type Config struct {
	// Backend reads what is in force. Without one, packets alone tell.
	Backend iptables.Backend
	// Want is what should be in force.
	Want *iptables.RuleSet
	// NetNS is a file descriptor of the namespace; 0 or less: that of the calling thread.
	NetNS int
	// NoPackets leaves it at what can be read.
	NoPackets bool
	// Timeout is how long a packet may take; 1 second if it is 0.
	Timeout time.Duration
	Log     *slog.Logger
}

// Run verifies a namespace. Whatever it finds is in the report; an error says that it could not look. It leaves nothing
// behind, and processes of the namespace see none of its packets.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	began := time.Now()
	r := &Report{Families: cfg.Want.Families}
	if cfg.Backend != nil {
		if err := r.read(ctx, cfg); err != nil {
			return nil, err
		}
	}
	if !cfg.NoPackets {
		if err := r.prove(ctx, cfg); err != nil {
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
	r.Backend = cfg.Backend.Name() // which may be known only now
	if in.Rules != nil || len(cfg.Want.Chains) > 0 || len(in.Strange) > 0 {
		r.Differences = iptables.Diff(cfg.Want, in)
	}
	return r.readForeign(ctx, cfg)
}

// readForeign notes the chains of others, if the back end knows of them.
func (r *Report) readForeign(ctx context.Context, cfg Config) (err error) {
	sees, ok := cfg.Backend.(interface {
		Foreign(context.Context) ([]iptables.ForeignChain, error)
	})
	if !ok {
		return nil
	}
	if r.foreign, err = sees.Foreign(ctx); err != nil {
		return fmt.Errorf("read the rules of others: %w", err)
	}
	for _, c := range r.foreign {
		r.Notes = append(r.Notes, "rules of others see packets too: "+c.String())
	}
	return nil
}

// lab sends packets.
type lab interface {
	Families() []iptables.Families
	Own(iptables.Families) ([]netip.Addr, error)
	Ends(iptables.Families) (near, far netip.Addr)
	Link() string
	Send(context.Context, []packets.Packet) ([]packets.Arrival, error)
	Close() error
}

// prove sends packets.
func (r *Report) prove(ctx context.Context, cfg Config) error {
	lab, err := packets.Open(ctx, cfg.lab())
	if errors.Is(err, packets.ErrNotPermitted) {
		r.Unproven = append(r.Unproven, "no packets were sent: "+err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("send packets: %w", err)
	}
	err = r.proveIn(ctx, cfg, lab)
	return errors.Join(err, lab.Close())
}

func (cfg *Config) lab() packets.Config {
	v := transparent(cfg.Want)
	return packets.Config{NetNS: cfg.NetNS, Timeout: cfg.Timeout, Log: cfg.Log, TransparentMark: v.Mark, TransparentPort: v.Port}
}

// transparent is what the rules do with what goes to a transparent proxy; a zero value if they do not.
func transparent(rules *iptables.RuleSet) (v iptables.Verdict) {
	for _, chain := range rules.Chains {
		for _, r := range chain.Rules {
			if r.Verdict.Action == iptables.TransparentProxy {
				v = r.Verdict
			}
		}
	}
	return v
}

func (r *Report) proveIn(ctx context.Context, cfg Config, lab lab) error {
	at, err := placeOf(lab)
	if err != nil {
		return err
	}
	r.Notes = append(r.Notes, passing(cfg.Want, at)...)
	s := newSampler(cfg.Want, at, packets.SenderIn(cfg.NetNS))
	s.foreign = named(r.foreign)
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
	if err := again(ctx, cfg.Want, lab, all, proofs); err != nil {
		return err
	}
	zoned, err := s.zoned(ctx, lab)
	if err != nil {
		return err
	}
	proofs = append(proofs, zoned...)
	r.Proofs = append(r.Proofs, proofs...)
	r.Unproven = append(append(r.Unproven, unproven(cfg.Want, proofs)...), s.unseen()...)
	return nil
}

// passing are the families that the namespace has addresses of its own of, and that the rules do not look at.
func passing(want *iptables.RuleSet, at place) (all []string) {
	for _, f := range at.families() {
		if want.Families&f == 0 && at.own[f] != at.near[f] {
			all = append(all, fmt.Sprintf("%s traffic bypasses the proxy: the namespace has the address %s, and the rules are for %s alone", f, at.own[f], want.Families))
		}
	}
	return all
}

func placeOf(lab lab) (place, error) {
	p := place{link: lab.Link(), own: map[iptables.Families]netip.Addr{}, near: map[iptables.Families]netip.Addr{},
		far: map[iptables.Families]netip.Addr{}}
	for _, f := range lab.Families() {
		own, err := lab.Own(f)
		if err != nil {
			return p, err
		}
		p.own[f] = own[0]
		p.near[f], p.far[f] = lab.Ends(f)
	}
	return p, nil
}

// send sends the samples and judges what became of them.
func send(ctx context.Context, want *iptables.RuleSet, lab lab, all []sample) ([]Proof, error) {
	sent := make([]packets.Packet, len(all))
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

// again sends once more what did not arrive as it should: a busy machine may take its time, and a rule that is wrong is so
// twice.
func again(ctx context.Context, want *iptables.RuleSet, lab lab, all []sample, proofs []Proof) error {
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

func (s *sample) packet() packets.Packet {
	p := packets.Packet{Inbound: s.Direction == iptables.Inbound, Protocol: s.Protocol, Destination: s.To, SourcePort: s.sourcePort, Interface: s.by,
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

// unproven are the reasons why packets could not be sent, each once, and the interfaces that none were sent by.
func unproven(want *iptables.RuleSet, proofs []Proof) (all []string) {
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
				if name != "" && name != "lo" && !slices.ContainsFunc(proofs, func(p Proof) bool { return p.by == name }) {
					add("traffic of the interface " + name + ": no packets were sent as if they were its")
				}
			}
		}
	}
	return all
}
