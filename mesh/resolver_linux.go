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
	// lookupTimeout bounds one question of the mesh's own, and to each resolver of this machine.
	lookupTimeout = 2 * time.Second
	// maxQuestions bounds the questions that are under way.
	maxQuestions = 512
)

// resolver answers the workloads' agents from the bridge: it hands on what they ask to this machine's resolvers.
type resolver struct {
	plan    capturedPlan
	servers []*dns.Server
	running sync.WaitGroup
	slots   chan struct{}
}

func (p *capturedPlacement) openResolver(at netip.AddrPort) (*resolver, error) {
	packets, err := p.bridge.ListenPacket("udp", at.String())
	if err != nil {
		return nil, err
	}
	listener, err := p.bridge.Listen("tcp", at.String())
	if err != nil {
		return nil, errors.Join(err, packets.Close())
	}
	r := &resolver{plan: p.plan, slots: make(chan struct{}, maxQuestions)}
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

func (r *resolver) close() error {
	var errs []error
	for _, s := range r.servers {
		errs = append(errs, s.Shutdown())
	}
	r.running.Wait()
	return errors.Join(errs...)
}

// ServeDNS answers one question.
func (r *resolver) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	answer := new(dns.Msg)
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		_ = w.WriteMsg(answer.SetRcode(question, dns.RcodeRefused))
		return
	}
	if own := r.own(question); own != nil {
		_ = w.WriteMsg(own)
		return
	}
	network := w.LocalAddr().Network()
	forwarded, err := forward(network, question)
	if err != nil {
		forwarded = answer.SetRcode(question, dns.RcodeServerFailure)
	}
	_ = w.WriteMsg(forwarded)
}

// own is the answer for the machine's name, for names that nobody outside can know, and for addresses of IPv6 where they
// would lead nowhere: a sidecar takes the connection all the same, so that no application would go on to an address of IPv4.
func (r *resolver) own(question *dns.Msg) *dns.Msg {
	if len(question.Question) != 1 {
		return nil
	}
	q := question.Question[0]
	if unknownOutside(q.Name) {
		return new(dns.Msg).SetRcode(question, dns.RcodeNameError)
	}
	ours := dns.CanonicalName(q.Name) == HostName+"."
	if !ours && (q.Qtype != dns.TypeAAAA || wayByIPv6()) {
		return nil
	}
	answer := new(dns.Msg).SetReply(question)
	answer.RecursionAvailable = true
	if ours && q.Qtype == dns.TypeA {
		head := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}
		answer.Answer = []dns.RR{&dns.A{Hdr: head, A: r.plan.host().AsSlice()}}
	}
	return answer
}

// unknownOutside are names of the mesh, and the machine's with something after it. Proxies ask for those as they complete a
// name by the domains to search; were they handed on where no resolver answers, a name would not be found that is known
// here.
func unknownOutside(name string) bool {
	name = dns.CanonicalName(name)
	return dns.IsSubDomain("cluster.local.", name) || strings.HasPrefix(name, HostName+".") && name != HostName+"."
}

// wayByIPv6 says whether this machine has a route for addresses of IPv6 that are not its own.
func wayByIPv6() bool {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
	return err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return r.Gw != nil && (r.Dst == nil || r.Dst.IP.IsUnspecified())
	})
}

// forward asks this machine's resolvers, one after the other.
func forward(network string, question *dns.Msg) (*dns.Msg, error) {
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

// lookup finds the addresses of a name as the workload's application does.
func (at *place) lookup(ctx context.Context, host string) ([]string, error) {
	for _, name := range at.names.NameList(host) {
		answer, err := at.ask(ctx, name)
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

func (at *place) ask(ctx context.Context, name string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	conn, err := at.space.Dial(ctx, "udp", net.JoinHostPort(at.names.Servers[0], at.names.Port))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := dns.Client{Timeout: lookupTimeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), &dns.Conn{Conn: conn})
	return answer, err
}
