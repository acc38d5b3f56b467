package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// The ports of a proxy, which listens on them at its instance's proxy address.
const (
	adminPort      = 15000
	outboundPort   = 15001 // where what the application sends is captured
	inboundPort    = 15006 // and what is sent to it
	statusPort     = 15020
	readinessPort  = 15021
	namesPort      = 15053
	proxyPort      = 15080
	prometheusPort = 15090
	tokenPort      = 15463
)

// The ports of the control plane, at the first address of the mesh's network.
const (
	plainPort      = 15010
	securePort     = 15012
	monitoringPort = 15014
	exchangePort   = 15016
)

// The networks that a mesh looks through for a free one.
const (
	firstNetwork = 77
	lastNetwork  = 126
)

// Instance is one replica of a workload, with its addresses.
type Instance struct {
	Name string
	// Proxy is the instance's address in the mesh, where its proxy listens; App is where the application does.
	Proxy netip.Addr
	App   netip.Addr
	// Proxy6 is its address of IPv6, where it has one.
	Proxy6 netip.Addr

	workload *Workload
	// own is where the instance's proxy listens for its own application, and for its agent.
	own netip.Addr
	// captured says that the application's traffic finds its proxy by itself.
	captured bool
	// upstreams is the network's third octet, which the addresses of TCP upstreams share.
	upstreams [3]byte
}

// loopbackNetwork is 127.N.0.0/16.
func loopbackNetwork(n byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127, n, 0, 0}), 16)
}

func controlPlaneAddress(network netip.Prefix) netip.Addr {
	b := network.Addr().As4()
	return netip.AddrFrom4([4]byte{b[0], b[1], 0, 1})
}

// placeInstances gives every replica of every workload its addresses: 127.N.i.1 to the proxy, 127.N.i.2 to the
// application, 127.N.i.16 and up to its TCP upstreams. The order of the file decides i, so that addresses stay the same
// from run to run.
func placeInstances(t *Topology, network netip.Prefix) []*Instance {
	var out []*Instance
	b := network.Addr().As4()
	for _, w := range t.Workloads {
		for replica := 1; replica <= w.Replicas; replica++ {
			i := byte(len(out) + 1)
			proxy := netip.AddrFrom4([4]byte{b[0], b[1], i, 1})
			out = append(out, &Instance{
				Name:      w.instanceName(replica),
				Proxy:     proxy,
				App:       netip.AddrFrom4([4]byte{b[0], b[1], i, 2}),
				own:       proxy,
				upstreams: [3]byte{b[0], b[1], i},
				workload:  w,
			})
		}
	}
	return out
}

// Workload is the workload that the instance is one of.
func (i *Instance) Workload() *Workload { return i.workload }

// httpProxy is the sidecar as HTTP proxy, which nobody has to be told of where traffic is captured.
func (i *Instance) httpProxy() string {
	if i.captured {
		return ""
	}
	return fmt.Sprintf("http://%s:%d", i.Proxy, proxyPort)
}

// dnsAddress is where the sidecar's agent answers DNS questions.
func (i *Instance) dnsAddress() string { return netip.AddrPortFrom(i.own, namesPort).String() }

// tokenURL is where the sidecar's agent exchanges tokens.
func (i *Instance) tokenURL() string {
	return "http://" + netip.AddrPortFrom(i.own, tokenPort).String() + "/token"
}

// upstreamAddress is where the sidecar listens for the n-th TCP upstream.
func (i *Instance) upstreamAddress(n int) netip.AddrPort {
	addr := netip.AddrFrom4([4]byte{i.upstreams[0], i.upstreams[1], i.upstreams[2], byte(16 + n)})
	return netip.AddrPortFrom(addr, i.workload.Upstreams[n].Port)
}

// upstream is what the application calls for the n-th TCP upstream: its listener, or simply its name.
func (i *Instance) upstream(n int) string {
	if u := i.workload.Upstreams[n]; i.captured {
		return net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
	}
	return i.upstreamAddress(n).String()
}

// StatusAddress is where the instance's agent answers for its readiness, and takes orders.
func (i *Instance) StatusAddress() netip.AddrPort { return netip.AddrPortFrom(i.own, statusPort) }

// AdminAddress is Envoy's admin interface.
func (i *Instance) AdminAddress() netip.AddrPort { return netip.AddrPortFrom(i.own, adminPort) }
