package verify

import (
	"context"
	"math/rand/v2"
	"net/netip"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/packettest"
)

// proveZones tests the conntrack zones of DNS. It sends queries from the proxy and from an application to the same
// resolvers, from the same source ports, in both orders.
//
// The kernel sends the agent's query to the resolver, but redirects the application's query to the agent. Without
// zones, conntrack treats the two queries as one connection. A reply must be in the zone of its query. Otherwise a
// firewall does not recognize the resolver's reply, and the kernel does not replace the source address of the agent's
// reply by that of the resolver.
func (s *sampler) proveZones(ctx context.Context, harness packetSender) (proofs []Proof, err error) {
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
	if _, err := send(ctx, s.rules, harness, first); err != nil {
		return nil, err
	}
	proofs, err = send(ctx, s.rules, harness, second)
	for i := range proofs {
		proofs[i].Subject += portReuseSuffix
		if proofs[i].Consequence != "" {
			proofs[i].Consequence += portReuseSuffix
		}
	}
	return proofs, err
}

const portReuseSuffix = ", if agent and application use the same source port one after the other"

func zoneSample(p iptables.Packet, port int) sample {
	return sample{Packet: p, sourcePort: uint16(port), answered: true}
}

// dnsQueries returns one DNS query for each resolver that redirect rules match, or to an outside address if a rule matches
// any resolver. It returns nil if no rule assigns a zone to a user.
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

// zonedUIDs returns the user IDs of the proxy for which rules assign a conntrack zone.
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
