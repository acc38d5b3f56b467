package mesh

import (
	"fmt"
	"net/netip"
)

// Captured gives each workload a network namespace of its own, on a bridge in yet another one, and has the kernel redirect
// what an application sends and gets to its sidecar: programs are in the mesh as they are. The machine's own network
// gets nothing but the listeners of published ports, and all of it is gone with the processes that use it. It takes root, or
// the privileges in a user namespace that CaptureFlags.Elsewhere gives.
type Captured struct{}

// The plan of addresses of a captured mesh, 10.N.0.0/16: 10.N.0.1 is the bridge, with the control plane, 10.N.0.2 stands
// for the machine's own loopback, and 10.N.i.1 is instance i. The same in fd50:494c:4f54:N::/64: ::1 and ::i:1.
type capturedPlan struct{ v4, v6 netip.Prefix }

// HostName is what the machine's own loopback is called in a captured mesh.
const HostName = "host.pilotfish.internal"

// proxyGroup is the group that agents and their Envoys run with, by which their own traffic is told from what is to be
// captured. It is the one of Istio's proxies.
const proxyGroup = 1337

func planCaptured(n byte) capturedPlan {
	v6 := [16]byte{0xfd, 0x50, 0x49, 0x4c, 0x4f, 0x54, 0, n}
	return capturedPlan{
		v4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, n, 0, 0}), 16),
		v6: netip.PrefixFrom(netip.AddrFrom16(v6), 64),
	}
}

func (p capturedPlan) at(group, host byte) (v4, v6 netip.Addr) {
	a4, a6 := p.v4.Addr().As4(), p.v6.Addr().As16()
	a4[2], a4[3] = group, host
	a6[13], a6[15] = group, host
	return netip.AddrFrom4(a4), netip.AddrFrom16(a6)
}

// bridge has the control plane and the way outside.
func (p capturedPlan) bridge() (v4, v6 netip.Addr) { return p.at(0, 1) }

// host stands for the machine. It has no address of IPv6: a sidecar takes connections before it knows whether somebody
// listens, so that no application would try the other family.
func (p capturedPlan) host() netip.Addr {
	v4, _ := p.at(0, 2)
	return v4
}

// place gives all instances their addresses. Proxy and application share theirs: each sees what is meant for it.
func (p capturedPlan) place(t *Topology) []*Instance {
	instances := placeInstances(t, p.v4)
	for n, i := range instances {
		i.Proxy, i.Proxy6 = p.at(byte(n+1), 1)
		i.App, i.own, i.captured = i.Proxy, netip.AddrFrom4([4]byte{127, 0, 0, 1}), true
	}
	return instances
}

// resolvConf has an application's questions go to the bridge, where those that its own agent does not answer are
// forwarded, and complete names as in a pod.
func (p capturedPlan) resolvConf(w *Workload, search []string) string {
	nameserver, _ := p.bridge()
	domains := w.Namespace + ".svc.cluster.local svc.cluster.local cluster.local"
	for _, domain := range search {
		domains += " " + domain
	}
	return fmt.Sprintf("# of the mesh, for workload %s\nnameserver %s\nsearch %s\noptions ndots:5\n", w.Name, nameserver, domains)
}
