package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Ports on which a proxy listens, at the proxy address of its instance.
const (
	adminPort      = 15000 // reserved: Envoy's admin interface listens on a unix socket
	outboundPort   = 15001 // captured outbound connections
	inboundPort    = 15006 // captured inbound connections
	statusPort     = 15020
	readinessPort  = 15021
	agentDNSPort   = 15053
	httpProxyPort  = 15080
	prometheusPort = 15090
	tokenPort      = 15463
)

// Ports of the control plane. It listens at the first address of the mesh's network.
const (
	plaintextPort     = 15010
	securePort        = 15012
	monitoringPort    = 15014
	tokenExchangePort = 15016
)

// Second octets of the networks from which a mesh chooses a free one.
const (
	firstNetwork = 77
	lastNetwork  = 126
)

// Instance is one replica of a workload, with its addresses.
type Instance struct {
	Name string
	// Proxy is the address in the mesh on which the proxy listens. App is the address on which the application listens.
	Proxy netip.Addr
	App   netip.Addr
	// Proxy6 is the proxy's IPv6 address. It is the zero Addr in a loopback network.
	Proxy6 netip.Addr

	workload *Workload
	// localAddr is the address on which the proxy and its agent listen for the instance's own application.
	localAddr netip.Addr
	// captured reports whether the kernel redirects the application's traffic to the proxy.
	captured bool
	// upstreamOctets are the first three octets of the listener addresses of TCP upstreams.
	upstreamOctets [3]byte
}

// loopbackNetwork returns 127.N.0.0/16.
func loopbackNetwork(n byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127, n, 0, 0}), 16)
}

func controlPlaneAddress(network netip.Prefix) netip.Addr {
	b := network.Addr().As4()
	return netip.AddrFrom4([4]byte{b[0], b[1], 0, 1})
}

// assignAddresses returns an instance for every replica of every workload: 127.N.i.1 is the proxy, 127.N.i.2 the
// application, and 127.N.i.16 and following are its TCP upstreams. i follows the order of the file, so addresses do not
// change from run to run.
func assignAddresses(t *Topology, network netip.Prefix) []*Instance {
	var out []*Instance
	b := network.Addr().As4()
	for _, w := range t.Workloads {
		for replica := 1; replica <= w.Replicas; replica++ {
			i := byte(len(out) + 1)
			proxy := netip.AddrFrom4([4]byte{b[0], b[1], i, 1})
			out = append(out, &Instance{
				Name:           w.instanceName(replica),
				Proxy:          proxy,
				App:            netip.AddrFrom4([4]byte{b[0], b[1], i, 2}),
				localAddr:      proxy,
				upstreamOctets: [3]byte{b[0], b[1], i},
				workload:       w,
			})
		}
	}
	return out
}

// Workload returns the workload of the instance.
func (i *Instance) Workload() *Workload { return i.workload }

// httpProxyURL returns the URL of the sidecar's HTTP proxy, or "" when traffic is captured.
func (i *Instance) httpProxyURL() string {
	if i.captured {
		return ""
	}
	return fmt.Sprintf("http://%s:%d", i.Proxy, httpProxyPort)
}

// dnsAddress returns the address of the agent's DNS server.
func (i *Instance) dnsAddress() string { return netip.AddrPortFrom(i.localAddr, agentDNSPort).String() }

// tokenURL returns the URL of the agent's token exchange.
func (i *Instance) tokenURL() string {
	return "http://" + netip.AddrPortFrom(i.localAddr, tokenPort).String() + "/token"
}

// upstreamAddress returns the address on which the sidecar listens for the n-th TCP upstream.
func (i *Instance) upstreamAddress(n int) netip.AddrPort {
	addr := netip.AddrFrom4([4]byte{i.upstreamOctets[0], i.upstreamOctets[1], i.upstreamOctets[2], byte(16 + n)})
	return netip.AddrPortFrom(addr, i.workload.Upstreams[n].Port)
}

// upstreamTarget returns the address that the application calls for the n-th TCP upstream: the sidecar's listener, or
// the upstream's host name when traffic is captured.
func (i *Instance) upstreamTarget(n int) string {
	if u := i.workload.Upstreams[n]; i.captured {
		return net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
	}
	return i.upstreamAddress(n).String()
}

// StatusAddress returns the address of the agent's status server.
func (i *Instance) StatusAddress() netip.AddrPort { return netip.AddrPortFrom(i.localAddr, statusPort) }
