package mesh

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	resolvConfPath = "/etc/resolv.conf"
	dnsPort        = 53
	// lookupTimeout is the timeout of one DNS query.
	lookupTimeout = 2 * time.Second
	// maxQueries is the maximum number of concurrent queries.
	maxQueries = 512
)

// answerFunc returns the response to a client's query, which contains one question. It returns nil if the query must be
// forwarded.
type answerFunc func(question *dns.Msg, client netip.Addr) *dns.Msg

// dnsServer answers DNS queries of workloads. It forwards queries for which answer returns nil to this machine's
// resolvers.
type dnsServer struct {
	answer  answerFunc
	servers []*dns.Server
	running sync.WaitGroup
	slots   chan struct{}
}

// startDNSServer starts a server that serves both sockets. If it fails, it closes them.
func startDNSServer(packets net.PacketConn, listener net.Listener, answer answerFunc) (*dnsServer, error) {
	r := &dnsServer{answer: answer, slots: make(chan struct{}, maxQueries)}
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

func (r *dnsServer) close() error {
	var errs []error
	for _, s := range r.servers {
		errs = append(errs, s.Shutdown())
	}
	r.running.Wait()
	return errors.Join(errs...)
}

// ServeDNS answers one query.
func (r *dnsServer) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		_ = w.WriteMsg(new(dns.Msg).SetRcode(question, dns.RcodeRefused))
		return
	}
	if len(question.Question) == 1 {
		client, _ := netip.ParseAddrPort(w.RemoteAddr().String())
		if own := r.answer(question, client.Addr().Unmap()); own != nil {
			_ = w.WriteMsg(own)
			return
		}
	}
	forwarded, err := forwardQuery(w.LocalAddr().Network(), question)
	if err != nil {
		forwarded = new(dns.Msg).SetRcode(question, dns.RcodeServerFailure)
	}
	_ = w.WriteMsg(forwarded)
}

// isMeshName reports whether this machine's resolvers cannot know name, because it is in cluster.local, or is HostName
// with a search domain appended. Proxies query names with search domains appended. If such a query were forwarded
// while no resolver is reachable, the whole lookup would fail.
func isMeshName(name string) bool {
	name = dns.CanonicalName(name)
	return dns.IsSubDomain("cluster.local.", name) || strings.HasPrefix(name, HostName+".") && name != HostName+"."
}

// forwardQuery sends the query to this machine's resolvers in order, and returns the first response.
func forwardQuery(network string, question *dns.Msg) (*dns.Msg, error) {
	config, err := dns.ClientConfigFromFile(resolvConfPath)
	if err != nil {
		return nil, err
	}
	err = errors.New("/etc/resolv.conf of this machine lists no resolver")
	client := dns.Client{Net: network, Timeout: lookupTimeout, UDPSize: dns.MaxMsgSize}
	for _, server := range config.Servers {
		var answer *dns.Msg
		if answer, _, err = client.Exchange(question, net.JoinHostPort(server, config.Port)); err == nil {
			return answer, nil
		}
	}
	return nil, err
}
