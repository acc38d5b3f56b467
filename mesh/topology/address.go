package topology

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Ports on which a proxy listens, at the proxy address of its instance.
const (
	adminPort      = 15000 // reserved: Envoy's admin interface listens on a unix socket
	OutboundPort   = 15001 // captured outbound connections
	InboundPort    = 15006 // captured inbound connections
	StatusPort     = 15020
	ReadinessPort  = 15021
	AgentDNSPort   = 15053
	HTTPProxyPort  = 15080
	PrometheusPort = 15090
	TokenPort      = 15463
)

// Ports of the control plane. It listens at the first address of the mesh's network.
const (
	PlaintextPort     = 15010
	SecurePort        = 15012
	MonitoringPort    = 15014
	TokenExchangePort = 15016
)

// The second octets of the networks that a mesh may choose if the topology specifies none.
const (
	FirstNetwork = 77
	LastNetwork  = 126
)

// Instance is one replica of a workload, with its addresses.
type Instance struct {
	Name string
	// Proxy is the address on which the proxy listens. Other workloads of the mesh connect to it. App is the address on
	// which the application listens. Without a sidecar, the two are equal.
	Proxy netip.Addr
	App   netip.Addr
	// Proxy6 is the proxy's IPv6 address. It is the zero Addr in a loopback network.
	Proxy6 netip.Addr

	Workload *Workload
	// LocalAddr is the address on which the proxy and its agent listen for the instance's own application.
	LocalAddr netip.Addr
	// DNS is the address of the DNS server for the application: its agent's, or that of the mesh's process if it has no
	// sidecar.
	DNS netip.AddrPort
	// Captured reports whether the kernel redirects the application's traffic to the proxy.
	Captured bool
	// upstreamOctets contains the first three octets of the addresses on which the proxy listens for TCP upstreams.
	upstreamOctets [3]byte
}

// LoopbackNetwork returns 127.N.0.0/16.
func LoopbackNetwork(n byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127, n, 0, 0}), 16)
}

// ControlPlaneAddress returns the address of the control plane in a network.
func ControlPlaneAddress(network netip.Prefix) netip.Addr {
	b := network.Addr().As4()
	return netip.AddrFrom4([4]byte{b[0], b[1], 0, 1})
}

// AssignAddresses returns an instance for every replica of every workload: 127.N.i.1 is the proxy, 127.N.i.2 is the
// application, and 127.N.i.16 and the following addresses are its TCP upstreams. An application without a sidecar is at
// 127.N.i.1. i follows the order of the file, so the addresses are the same in each run.
func AssignAddresses(t *Topology, network netip.Prefix) []*Instance {
	var out []*Instance
	b := network.Addr().As4()
	for _, w := range t.Workloads {
		for replica := 1; replica <= w.Replicas; replica++ {
			i := byte(len(out) + 1)
			proxy, app := netip.AddrFrom4([4]byte{b[0], b[1], i, 1}), netip.AddrFrom4([4]byte{b[0], b[1], i, 2})
			if w.NoSidecar {
				app = proxy
			}
			out = append(out, &Instance{
				Name:           w.instanceName(replica),
				Proxy:          proxy,
				App:            app,
				LocalAddr:      proxy,
				DNS:            netip.AddrPortFrom(proxy, AgentDNSPort),
				upstreamOctets: [3]byte{b[0], b[1], i},
				Workload:       w,
			})
		}
	}
	return out
}

// HTTPProxyURL returns the URL of the sidecar's HTTP proxy, or "" if traffic is captured or there is no sidecar.
func (i *Instance) HTTPProxyURL() string {
	if i.Captured || i.Workload.NoSidecar {
		return ""
	}
	return fmt.Sprintf("http://%s:%d", i.Proxy, HTTPProxyPort)
}

// TokenURL returns the URL of the agent's token exchange.
func (i *Instance) TokenURL() string {
	return "http://" + netip.AddrPortFrom(i.LocalAddr, TokenPort).String() + "/token"
}

// UpstreamAddress returns the address on which the sidecar listens for the n-th TCP upstream. Without a sidecar, the
// mesh's process listens there.
func (i *Instance) UpstreamAddress(n int) netip.AddrPort {
	addr := netip.AddrFrom4([4]byte{i.upstreamOctets[0], i.upstreamOctets[1], i.upstreamOctets[2], byte(16 + n)})
	return netip.AddrPortFrom(addr, i.Workload.Upstreams[n].Port)
}

// upstreamTarget returns the address that the application uses for the n-th TCP upstream: UpstreamAddress, or the
// upstream's host name if traffic is captured.
func (i *Instance) upstreamTarget(n int) string {
	if u := i.Workload.Upstreams[n]; i.Captured {
		return net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
	}
	return i.UpstreamAddress(n).String()
}

// StatusAddress returns the address of the agent's status server.
func (i *Instance) StatusAddress() netip.AddrPort { return netip.AddrPortFrom(i.LocalAddr, StatusPort) }
