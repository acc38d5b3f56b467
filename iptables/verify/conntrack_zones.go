package verify

import (
	"context"
	"math/rand/v2"
	"net/netip"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packettest"
)

// The kernel decides about a connection once. Two DNS queries from the same port to the same resolver are one
// connection to it: the agent's, which goes to the resolver, and an application's, which is redirected to the agent.
// Conntrack zones separate the two. The test sends each query from a port that the other sender has just used. A
// resolver's reply must be in the zone of its query, or a firewall does not recognize it as a reply. The same holds for
// the agent's reply, which the application otherwise does not receive as the resolver's.

// proveZones sends DNS queries from the proxy and from an application, with the same source ports, in both orders.
func (s *sampler) proveZones(ctx context.Context, lab packetSender) (proofs []Proof, err error) {
	var first, second []sample
	for _, p := range s.dnsQueries() {
		ours, theirs := p, p
		ours.UID = &s.zonedUIDs()[0]
		first = append(first, zoneSample(ours, 2*len(first)), zoneSample(theirs, 2*len(first)+1))
		answered := zoneSample(theirs, 2*len(second))
		answered.answerer = &packettest.Owner{UID: s.zonedUIDs()[0], GID: s.group}
		second = append(second, answered, zoneSample(ours, 2*len(second)+1))
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
		proofs[i].Subject += portReuseSuffix
		if proofs[i].Consequence != "" {
			proofs[i].Consequence += portReuseSuffix
		}
	}
	return proofs, err
}

const portReuseSuffix = ", when the port that it is sent from was just used by the other of both, application and agent"

func zoneSample(p iptables.Packet, port int) sample {
	return sample{Packet: p, sourcePort: uint16(port), answered: true}
}

// dnsQueries returns one DNS query per resolver that redirect rules for UDP name, or to an outside address if a rule
// names none. It returns nil if no rule assigns a zone to a user.
func (s *sampler) dnsQueries() (all []iptables.Packet) {
	if s.singleUser || len(s.zonedUIDs()) == 0 {
		return nil
	}
	seen := map[netip.Addr]bool{}
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			if r.Verdict.Action != iptables.Redirect || r.Match.Protocol != iptables.UDP {
				continue
			}
			for _, f := range s.families() {
				to := s.outsideAddress(f)
				if len(r.Match.Destination) > 0 {
					to = r.Match.Destination[0].Addr()
				}
				if familyOf(to) != f || s.rules.Families&f == 0 || seen[to] {
					continue
				}
				seen[to] = true
				all = append(all, s.outbound(iptables.UDP, to, 53))
			}
		}
	}
	return all[:min(len(all), maxSamples/8)]
}

// zonedUIDs returns the user IDs to whose DNS queries the rules assign a zone.
func (s *sampler) zonedUIDs() (uids []uint32) {
	for _, c := range s.rules.Chains {
		for _, r := range c.Rules {
			if c.Table == iptables.Raw && r.Verdict.Action == iptables.Zone && !r.Match.NotUIDs {
				uids = append(uids, r.Match.UIDs...)
			}
		}
	}
	return uids
}
