// Package verify verifies the redirection of a network namespace. It compares the kernel's rules with the expected rule
// set, and sends test packets to check where they arrive.
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

// errRefused is the error of a rejected connection.
const errRefused = syscall.ECONNREFUSED

// Config configures a verification.
type Config struct {
	// Backend reads the installed rules. If it is nil, Run only sends packets.
	Backend iptables.Backend
	// Want is the rule set that should be installed.
	Want *iptables.RuleSet
	// NetNS is a file descriptor of the network namespace. 0 or less selects the calling thread's namespace.
	NetNS int
	// NoPackets skips the test packets.
	NoPackets bool
	// Timeout is the maximum time until a packet arrives; 0 means 1 second.
	Timeout time.Duration
	Log     *slog.Logger
}

// Run verifies a namespace. The report contains all differences. Run returns an error only if the verification itself
// fails. It removes all objects that it created. Processes of the namespace do not receive test packets.
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
		return fmt.Errorf("reading the installed rules: %w", err)
	}
	r.Backend = cfg.Backend.Name() // some backends know their name only after Read
	if in.Rules != nil || len(cfg.Want.Chains) > 0 || len(in.Strange) > 0 {
		r.Differences = iptables.Diff(cfg.Want, in)
	}
	return r.readForeign(ctx, cfg)
}

// readForeign reads the rules of other programs, if the backend supports that. It adds notes about them.
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
		r.Notes = append(r.Notes, "another program's rules apply too: "+c.String())
	}
	return nil
}

// packetSender sends packets and observes where they arrive.
type packetSender interface {
	Families() []iptables.Families
	Addresses(iptables.Families) ([]netip.Addr, error)
	Ends(iptables.Families) (near, far netip.Addr)
	Link() string
	Send(context.Context, []packettest.Packet) ([]packettest.Arrival, error)
	Close() error
}

// sendPackets sends the test packets through a harness. If it has no permission to create one, it sends no packets and
// adds the reason to Unproven.
func (r *Report) sendPackets(ctx context.Context, cfg Config) error {
	harness, err := packettest.Open(ctx, cfg.harness())
	if errors.Is(err, packettest.ErrNotPermitted) {
		r.Unproven = append(r.Unproven, "no packets were sent: "+err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("sending the test packets: %w", err)
	}
	err = r.sendPacketsIn(ctx, cfg, harness)
	return errors.Join(err, harness.Close())
}

func (cfg *Config) harness() packettest.Config {
	v := transparentVerdict(cfg.Want)
	return packettest.Config{NetNS: cfg.NetNS, Timeout: cfg.Timeout, Log: cfg.Log, TransparentMark: v.Mark, TransparentPort: v.Port}
}

// transparentVerdict returns the verdict of the TPROXY rules, or the zero value if there are no such rules.
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

func (r *Report) sendPacketsIn(ctx context.Context, cfg Config, harness packetSender) error {
	at, err := harnessEndpoints(harness)
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
		r.Unproven = append(r.Unproven, fmt.Sprintf("%d rules were not tested with packets: the limit for test packets was reached", left))
	}
	proofs, err := send(ctx, cfg.Want, harness, all)
	if err != nil {
		return err
	}
	if err := retryFailed(ctx, cfg.Want, harness, all, proofs); err != nil {
		return err
	}
	zoned, err := s.proveZones(ctx, harness)
	if err != nil {
		return err
	}
	proofs = append(proofs, zoned...)
	r.Proofs = append(r.Proofs, proofs...)
	r.Unproven = append(append(r.Unproven, unprovenReasons(cfg.Want, proofs)...), s.unverifiable()...)
	return nil
}

// uncapturedFamilies returns a note for each address family that the namespace uses but the rules do not handle.
func uncapturedFamilies(want *iptables.RuleSet, at endpoints) (all []string) {
	for _, f := range at.families() {
		if want.Families&f == 0 && at.own[f] != at.near[f] {
			all = append(all, fmt.Sprintf("%s traffic bypasses the proxy: the namespace has the address %s, but the rules handle only %s", f, at.own[f], want.Families))
		}
	}
	return all
}

func harnessEndpoints(harness packetSender) (endpoints, error) {
	p := endpoints{link: harness.Link(), own: map[iptables.Families]netip.Addr{}, near: map[iptables.Families]netip.Addr{},
		far: map[iptables.Families]netip.Addr{}}
	for _, f := range harness.Families() {
		own, err := harness.Addresses(f)
		if err != nil {
			return p, err
		}
		p.own[f] = own[0]
		p.near[f], p.far[f] = harness.Ends(f)
	}
	return p, nil
}

// send sends the samples and compares the outcome of each with the expected one.
func send(ctx context.Context, want *iptables.RuleSet, harness packetSender, all []sample) ([]Proof, error) {
	sent := make([]packettest.Packet, len(all))
	for i, s := range all {
		sent[i] = s.packet()
	}
	arrivals, err := harness.Send(ctx, sent)
	if err != nil {
		return nil, fmt.Errorf("sending the test packets: %w", err)
	}
	proofs := make([]Proof, len(all))
	for i, s := range all {
		proofs[i] = judge(s, iptables.Explain(want, s.Packet), arrivals[i])
	}
	return proofs, nil
}

// retryFailed resends the packets that did not arrive as expected, and replaces their proofs. On a busy machine, the
// first failure can be a timeout.
func retryFailed(ctx context.Context, want *iptables.RuleSet, harness packetSender, all []sample, proofs []Proof) error {
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
	second, err := send(ctx, want, harness, failed)
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

// unprovenReasons returns the reasons why packets could not be sent, without duplicates. It also returns the interfaces
// that rules name but that no test packet used.
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
					add("traffic of the interface " + name + ": no test packets were sent through it")
				}
			}
		}
	}
	return all
}
