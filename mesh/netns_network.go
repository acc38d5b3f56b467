package mesh

import (
	"fmt"
	"net/netip"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// Captured is the Network in which each workload has a network namespace. A bridge in a separate namespace connects
// them. The kernel redirects the application's traffic to its sidecar, so programs need no change. The machine's own
// network contains only the listeners of published ports. When all processes that use the namespaces have ended, the
// kernel removes the namespaces. Captured needs root, or the capabilities in a user namespace that CaptureFlags.Reexec
// creates.
type Captured struct{}

// addressPlan assigns the addresses of a captured mesh in 10.N.0.0/16: 10.N.0.1 is the bridge, with the control plane;
// 10.N.0.2 is the machine's own loopback; 10.N.i.1 is instance i. In fd50:494c:4f54:N::/64, ::1 is the bridge, and
// ::i:1 is instance i.
type addressPlan struct{ v4, v6 netip.Prefix }

// HostName is the host name of the machine's own loopback in a captured mesh.
const HostName = "host.pilotfish.internal"

// proxyGroup is the group ID of agents and their Envoys. The kernel does not redirect the traffic of this group.
// Istio's proxies have the same group ID.
const proxyGroup = 1337

func newAddressPlan(n byte) addressPlan {
	v6 := [16]byte{0xfd, 0x50, 0x49, 0x4c, 0x4f, 0x54, 0, n}
	return addressPlan{
		v4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, n, 0, 0}), 16),
		v6: netip.PrefixFrom(netip.AddrFrom16(v6), 64),
	}
}

func (p addressPlan) addresses(group, host byte) (v4, v6 netip.Addr) {
	a4, a6 := p.v4.Addr().As4(), p.v6.Addr().As16()
	a4[2], a4[3] = group, host
	a6[13], a6[15] = group, host
	return netip.AddrFrom4(a4), netip.AddrFrom16(a6)
}

// bridgeAddresses returns the addresses of the control plane and of the egress listener.
func (p addressPlan) bridgeAddresses() (v4, v6 netip.Addr) { return p.addresses(0, 1) }

// hostAddress returns the address of the machine. There is only an IPv4 address. If there were an IPv6 address too,
// applications would not fall back to IPv4, because a sidecar accepts connections before it knows whether the
// destination listens.
func (p addressPlan) hostAddress() netip.Addr {
	v4, _ := p.addresses(0, 2)
	return v4
}

// assignAddresses returns all instances with their addresses. An instance's proxy and application have the same
// address.
func (p addressPlan) assignAddresses(t *topology.Topology) []*topology.Instance {
	instances := topology.AssignAddresses(t, p.v4)
	for n, i := range instances {
		i.Proxy, i.Proxy6 = p.addresses(byte(n+1), 1)
		i.App, i.LocalAddr, i.Captured = i.Proxy, netip.AddrFrom4([4]byte{127, 0, 0, 1}), true
		i.DNS = netip.AddrPortFrom(i.LocalAddr, topology.AgentDNSPort)
		if i.Workload.NoSidecar {
			bridge, _ := p.bridgeAddresses()
			i.DNS = netip.AddrPortFrom(bridge, dnsPort)
		}
	}
	return instances
}

// resolvConf returns an application's resolv.conf. Its name server is the bridge, which answers the queries that no
// agent answers. Its search domains are those of a pod in the workload's namespace, followed by search.
func (p addressPlan) resolvConf(w *topology.Workload, search []string) string {
	nameserver, _ := p.bridgeAddresses()
	domains := w.Namespace + ".svc.cluster.local svc.cluster.local cluster.local"
	for _, domain := range search {
		domains += " " + domain
	}
	return fmt.Sprintf("# written by pilotfish for workload %s\nnameserver %s\nsearch %s\noptions ndots:5\n", w.Name, nameserver, domains)
}
