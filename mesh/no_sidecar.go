package mesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// serviceLookup returns the addresses of the service called host that is visible in namespace. ok is false if there is
// none.
type serviceLookup func(namespace, host string) (found controlplane.ServiceAddresses, ok bool)

// lookupService implements serviceLookup. While the control plane is stopped, it uses the server that served most
// recently.
func (m *Mesh) lookupService(namespace, host string) (found controlplane.ServiceAddresses, ok bool) {
	p := m.currentControlPlane()
	if p == nil {
		return found, false
	}
	p.mu.Lock()
	server := p.lastServing
	p.mu.Unlock()
	if server == nil {
		return found, false
	}
	return server.LookupService(namespace, host)
}

// noProxyVariables remove the proxies of the user's shell from an application's environment. Through such a proxy, the
// application's requests would not reach the mesh.
var noProxyVariables = []string{"HTTP_PROXY=", "http_proxy=", "HTTPS_PROXY=", "https_proxy=", "ALL_PROXY=", "all_proxy="}

// attachWithoutSidecar attaches an instance that has no sidecar. In place of a sidecar, this process answers the
// application's DNS queries, and forwards connections to its TCP upstreams.
func (p *loopbackPlacement) attachWithoutSidecar(i *topology.Instance) Attachment {
	return Attachment{AppEnv: noProxyVariables, Dial: p.Dial, Check: func() error {
		if err := checkPorts(i); err != nil {
			return err
		}
		if err := errors.Join(p.serveNames(i), p.forwardUpstreams(i)); err != nil {
			return fmt.Errorf("workload %s: %w", i.Name, err)
		}
		return nil
	}}
}

// serveNames starts the DNS server of an instance.
func (p *loopbackPlacement) serveNames(i *topology.Instance) error {
	packets, err := net.ListenPacket("udp", i.DNS.String())
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", i.DNS.String())
	if err != nil {
		return errors.Join(err, packets.Close())
	}
	server, err := startDNSServer(packets, listener, func(question *dns.Msg, _ netip.Addr) *dns.Msg {
		if answer := answerServiceName(p.lookup, i, question); answer != nil || !isMeshName(question.Question[0].Name) {
			return answer
		}
		return new(dns.Msg).SetRcode(question, dns.RcodeNameError)
	})
	if err == nil {
		p.onRelease(server.close)
	}
	return err
}

// forwardUpstreams listens on the addresses of an instance's TCP upstreams.
func (p *loopbackPlacement) forwardUpstreams(i *topology.Instance) error {
	for n, u := range i.Workload.Upstreams {
		l, err := net.Listen("tcp", i.UpstreamAddress(n).String())
		if err != nil {
			return err
		}
		forwarder := newTCPForwarder(l, func(ctx context.Context, _ net.Conn) (net.Conn, error) {
			return p.dialUpstream(ctx, i.Workload.Namespace, u)
		})
		p.onRelease(forwarder.close)
	}
	return nil
}

// dialUpstream connects to an endpoint of the upstream's service, which it chooses at random. If the mesh has no such
// service, it connects to the host.
func (p *loopbackPlacement) dialUpstream(ctx context.Context, namespace string, u topology.Upstream) (net.Conn, error) {
	to := net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
	if found, ok := p.lookup(namespace, u.Host); ok {
		endpoints := found.Endpoints(u.Port)
		if len(endpoints) == 0 {
			return nil, fmt.Errorf("%s has no ready instances", to)
		}
		to = endpoints[rand.IntN(len(endpoints))].String()
	}
	return p.Dial(ctx, "tcp", to)
}

// serviceNameTTL is the TTL of a service's name, in seconds. The name may resolve to instances, which may end.
const serviceNameTTL = 5

// answerServiceName answers a query of an instance without a sidecar for the name of a service. It returns nil if the
// mesh has no such service. With capture, the kernel forwards connections to the service's addresses. Without, the name
// resolves to the upstream's addresses, if the service is an upstream, or to the instances.
func answerServiceName(lookup serviceLookup, i *topology.Instance, question *dns.Msg) *dns.Msg {
	w, name := i.Workload, strings.TrimSuffix(dns.CanonicalName(question.Question[0].Name), ".")
	found, ok := lookup(w.Namespace, name)
	if !ok {
		return nil
	}
	var addresses []netip.Addr
	if i.Captured {
		addresses = found.Addresses
	} else {
		for n, u := range w.Upstreams {
			if at := i.UpstreamAddress(n).Addr(); u.Host == found.Host {
				addresses = append(addresses, at)
			}
		}
	}
	if len(addresses) == 0 {
		addresses = found.Instances
	}
	return newAddressAnswer(question, addresses, serviceNameTTL)
}

// newAddressAnswer returns a response with those addresses that have the requested family.
func newAddressAnswer(question *dns.Msg, addresses []netip.Addr, ttl uint32) *dns.Msg {
	answer := new(dns.Msg).SetReply(question)
	answer.RecursionAvailable = true
	q := question.Question[0]
	head := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: ttl}
	for _, at := range addresses {
		switch {
		case q.Qtype == dns.TypeA && at.Is4():
			answer.Answer = append(answer.Answer, &dns.A{Hdr: head, A: at.AsSlice()})
		case q.Qtype == dns.TypeAAAA && at.Is6():
			answer.Answer = append(answer.Answer, &dns.AAAA{Hdr: head, AAAA: at.AsSlice()})
		}
	}
	return answer
}
