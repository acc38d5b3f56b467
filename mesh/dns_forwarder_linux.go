package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
)

// startDNS starts the DNS server on the bridge. Its clients are agents, which forward the queries that they do not
// answer, and instances without a sidecar.
func (p *capturedPlacement) startDNS(at netip.AddrPort) (*dnsServer, error) {
	packets, err := p.bridge.ListenPacket("udp", at.String())
	if err != nil {
		return nil, err
	}
	listener, err := p.bridge.Listen("tcp", at.String())
	if err != nil {
		return nil, errors.Join(err, packets.Close())
	}
	return startDNSServer(packets, listener, p.answerQuery)
}

// answerQuery returns a response without forwarding the query: for the machine's name, for names of the mesh, and for
// AAAA queries if the machine has no IPv6 route. Otherwise it returns nil. Without these responses to AAAA queries,
// applications would connect to unreachable IPv6 addresses. A sidecar accepts such connections, so the applications
// would not fall back to IPv4.
func (p *capturedPlacement) answerQuery(question *dns.Msg, client netip.Addr) *dns.Msg {
	for _, i := range p.instances {
		if i.Workload.NoSidecar && i.Proxy == client {
			if answer := answerServiceName(p.resources.LookupService, i, question); answer != nil {
				return answer
			}
		}
	}
	q := question.Question[0]
	if isMeshName(q.Name) {
		return new(dns.Msg).SetRcode(question, dns.RcodeNameError)
	}
	ours := dns.CanonicalName(q.Name) == HostName+"."
	if !ours && (q.Qtype != dns.TypeAAAA || hasIPv6Route()) {
		return nil
	}
	var addresses []netip.Addr
	if ours {
		addresses = []netip.Addr{p.plan.hostAddress()}
	}
	return newAddressAnswer(question, addresses, hostNameTTL)
}

// hostNameTTL is the TTL of HostName, in seconds.
const hostNameTTL = 60

// hasIPv6Route reports whether this machine has a default IPv6 route.
func hasIPv6Route() bool {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
	return err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return r.Gw != nil && (r.Dst == nil || r.Dst.IP.IsUnspecified())
	})
}

// lookup returns the IPv4 addresses of host, as the instance's application would resolve it.
func (sb *sandbox) lookup(ctx context.Context, host string) ([]string, error) {
	for _, name := range sb.dnsConfig.NameList(host) {
		answer, err := sb.query(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("looking up %s: %w", host, err)
		}
		var found []string
		for _, rr := range answer.Answer {
			if a, ok := rr.(*dns.A); ok {
				found = append(found, a.A.String())
			}
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (sb *sandbox) query(ctx context.Context, name string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	conn, err := sb.namespace.Dial(ctx, "udp", net.JoinHostPort(sb.dnsConfig.Servers[0], sb.dnsConfig.Port))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := dns.Client{Timeout: lookupTimeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), &dns.Conn{Conn: conn})
	return answer, err
}
