package verify

import (
	"context"
	"math/rand/v2"
	"net/netip"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packets"
)

// The kernel decides about a connection once, and to it two questions from the same port to the same resolver are one: the
// agent's, which goes there, and an application's, which goes to the agent. Zones keep them apart. To see it, one asks from
// the port that the other one asked from just before. And what comes back from a resolver has to be in the zone of its question,
// or it is no answer to a firewall; what the agent answers too, or it is not the resolver's to who asked.

// zoned sends DNS questions by the proxy and by an application from the same ports, each of them first once.
func (s *sampler) zoned(ctx context.Context, lab lab) (proofs []Proof, err error) {
	var first, second []sample
	for _, p := range s.questions() {
		ours, theirs := p, p
		ours.UID = &s.proxy()[0]
		first = append(first, from(ours, 2*len(first)), from(theirs, 2*len(first)+1))
		answered := from(theirs, 2*len(second))
		answered.answerer = &packets.Owner{UID: s.proxy()[0], GID: s.group}
		second = append(second, answered, from(ours, 2*len(second)+1))
	}
	if len(first) == 0 {
		return nil, nil
	}
	base := 20000 + rand.IntN(10000)
	for i := range first {
		first[i].sourcePort += uint16(base)
		second[i].sourcePort += uint16(base)
	}
	if _, err := send(ctx, s.rules, lab, first); err != nil {
		return nil, err
	}
	proofs, err = send(ctx, s.rules, lab, second)
	for i := range proofs {
		proofs[i].Subject += afterwards
		if proofs[i].Consequence != "" {
			proofs[i].Consequence += afterwards
		}
	}
	return proofs, err
}

const afterwards = ", when the port that it is sent from was just used by the other of both, application and agent"

func from(p iptables.Packet, port int) sample {
	return sample{Packet: p, sourcePort: uint16(port), answered: true}
}

// questions are to each resolver that rules with zones name, or to any; none without such rules.
func (s *sampler) questions() (all []iptables.Packet) {
	if s.alone || len(s.proxy()) == 0 {
		return nil
	}
	seen := map[netip.Addr]bool{}
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			if r.Verdict.Action != iptables.Redirect || r.Match.Protocol != iptables.UDP {
				continue
			}
			for _, f := range s.families() {
				to := s.outside(f)
				if len(r.Match.Destination) > 0 {
					to = r.Match.Destination[0].Addr()
				}
				if family(to) != f || s.rules.Families&f == 0 || seen[to] {
					continue
				}
				seen[to] = true
				all = append(all, s.outbound(iptables.UDP, to, 53))
			}
		}
	}
	return all[:min(len(all), maxSamples/8)]
}

// proxy are the users whose questions go to resolvers.
func (s *sampler) proxy() (uids []uint32) {
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			if c.Table == iptables.Raw && r.Verdict.Action == iptables.Zone && !r.Match.NotUIDs {
				uids = append(uids, r.Match.UIDs...)
			}
		}
	}
	return uids
}
