package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
)

const (
	// lookupTimeout is the timeout of one DNS query.
	lookupTimeout = 2 * time.Second
	// maxQueries is the maximum number of concurrent queries.
	maxQueries = 512
)

// dnsForwarder answers DNS queries of the workloads' agents on the bridge. It forwards them to this machine's
// resolvers.
type dnsForwarder struct {
	plan    addressPlan
	servers []*dns.Server
	running sync.WaitGroup
	slots   chan struct{}
}

func (p *capturedPlacement) newDNSForwarder(at netip.AddrPort) (*dnsForwarder, error) {
	packets, err := p.bridge.ListenPacket("udp", at.String())
	if err != nil {
		return nil, err
	}
	listener, err := p.bridge.Listen("tcp", at.String())
	if err != nil {
		return nil, errors.Join(err, packets.Close())
	}
	r := &dnsForwarder{plan: p.plan, slots: make(chan struct{}, maxQueries)}
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: r}, {Listener: listener, Handler: r}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		ended := make(chan error, 1)
		r.running.Go(func() { ended <- s.ActivateAndServe() })
		select {
		case <-started:
			r.servers = append(r.servers, s)
		case err := <-ended:
			return nil, errors.Join(err, r.close(), packets.Close(), listener.Close())
		}
	}
	return r, nil
}

func (r *dnsForwarder) close() error {
	var errs []error
	for _, s := range r.servers {
		errs = append(errs, s.Shutdown())
	}
	r.running.Wait()
	return errors.Join(errs...)
}

// ServeDNS answers one query.
func (r *dnsForwarder) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	answer := new(dns.Msg)
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		_ = w.WriteMsg(answer.SetRcode(question, dns.RcodeRefused))
		return
	}
	if own := r.answerLocally(question); own != nil {
		_ = w.WriteMsg(own)
		return
	}
	network := w.LocalAddr().Network()
	forwarded, err := forwardQuery(network, question)
	if err != nil {
		forwarded = answer.SetRcode(question, dns.RcodeServerFailure)
	}
	_ = w.WriteMsg(forwarded)
}

// answerLocally returns a response without forwarding the query: for the machine's name, for names of the mesh, and for
// AAAA queries if the machine has no IPv6 route. Otherwise it returns nil. Without these responses to AAAA queries,
// applications would connect to unreachable IPv6 addresses. A sidecar accepts such connections, so the applications
// would not fall back to IPv4.
func (r *dnsForwarder) answerLocally(question *dns.Msg) *dns.Msg {
	if len(question.Question) != 1 {
		return nil
	}
	q := question.Question[0]
	if isMeshName(q.Name) {
		return new(dns.Msg).SetRcode(question, dns.RcodeNameError)
	}
	ours := dns.CanonicalName(q.Name) == HostName+"."
	if !ours && (q.Qtype != dns.TypeAAAA || hasIPv6Route()) {
		return nil
	}
	answer := new(dns.Msg).SetReply(question)
	answer.RecursionAvailable = true
	if ours && q.Qtype == dns.TypeA {
		head := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}
		answer.Answer = []dns.RR{&dns.A{Hdr: head, A: r.plan.hostAddress().AsSlice()}}
	}
	return answer
}

// isMeshName reports whether this machine's resolvers cannot know name, because it is in cluster.local, or is HostName
// with a search domain appended. Proxies query names with search domains appended. If such a query were forwarded
// while no resolver is reachable, the whole lookup would fail.
func isMeshName(name string) bool {
	name = dns.CanonicalName(name)
	return dns.IsSubDomain("cluster.local.", name) || strings.HasPrefix(name, HostName+".") && name != HostName+"."
}

// hasIPv6Route reports whether this machine has a default IPv6 route.
func hasIPv6Route() bool {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
	return err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return r.Gw != nil && (r.Dst == nil || r.Dst.IP.IsUnspecified())
	})
}

// forwardQuery sends the query to this machine's resolvers in order, and returns the first response.
func forwardQuery(network string, question *dns.Msg) (*dns.Msg, error) {
	config, err := dns.ClientConfigFromFile(resolvConfPath)
	if err != nil {
		return nil, err
	}
	err = errors.New("this machine has no resolver")
	client := dns.Client{Net: network, Timeout: lookupTimeout, UDPSize: dns.MaxMsgSize}
	for _, server := range config.Servers {
		var answer *dns.Msg
		if answer, _, err = client.Exchange(question, net.JoinHostPort(server, config.Port)); err == nil {
			return answer, nil
		}
	}
	return nil, err
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
