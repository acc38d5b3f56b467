package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
	"github.com/pilotfish-mesh/pilotfish/mesh/netns"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// CanCapture returns an error with the reason if this process cannot run a mesh with redirection. To determine this, it
// tries the privileged operations in a new network namespace.
func CanCapture() error {
	err := tryCapture()
	if err == nil {
		return nil
	}
	remedy := ""
	if os.Geteuid() != 0 {
		remedy = namespaceRemedy(err)
	}
	return fmt.Errorf("%w: --capture needs root, with CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_SETGID and CAP_SETPCAP, and a kernel with nftables%s", err, remedy)
}

func tryCapture() error {
	n, err := netns.New()
	if err != nil {
		return err
	}
	defer n.Close()
	if err := redirectEgress(n, newAddressPlan(topology.FirstNetwork)); err != nil {
		return fmt.Errorf("redirecting by nftables: %w", err)
	}
	l, err := n.Listen("tcp", "127.0.0.1:53")
	if err != nil {
		return fmt.Errorf("listening on a privileged port in a network namespace: %w", err)
	}
	_ = l.Close()
	netns.OnThread(func() { // every process of a mesh with redirection needs this operation
		err = netns.ProcessIsolation{Hide: []string{"/run/nscd"}, Capabilities: []uintptr{unix.CAP_NET_BIND_SERVICE}, Group: proxyGroup}.Enter()
	})
	return err
}

// Claim creates the bridge and the egress listener, and reserves the host network.
func (Captured) Claim(t *topology.Topology, use Resources) (Placement, error) {
	plan, err := chooseAddressPlan(t)
	if err != nil {
		return nil, err
	}
	bridge4, bridge6 := plan.bridgeAddresses()
	bridge, err := netns.NewBridge(
		netip.PrefixFrom(bridge4, plan.v4.Bits()), netip.PrefixFrom(bridge6, plan.v6.Bits()),
		netip.PrefixFrom(plan.hostAddress(), 32))
	if err != nil {
		return nil, fmt.Errorf("%w (--no-capture runs the mesh without network namespaces)", err)
	}
	p := &capturedPlacement{plan: plan, resources: use, bridge: bridge, instances: plan.assignAddresses(t), sandboxes: map[*topology.Instance]*sandbox{}}
	p.onRelease(bridge.Close)
	if err := errors.Join(p.claimHostNetwork(), os.MkdirAll(use.Dir, 0o700), p.openEgress()); err != nil {
		return nil, errors.Join(err, p.Release())
	}
	return p, nil
}

// chooseAddressPlan returns the plan for the topology's network. If the topology specifies none, it returns the plan
// for the first network that overlaps no route of the machine.
func chooseAddressPlan(t *topology.Topology) (addressPlan, error) {
	if t.Network.IsValid() {
		return newAddressPlan(t.Network.Addr().As4()[1]), nil
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return addressPlan{}, fmt.Errorf("reading this machine's routes: %w", err)
	}
	for n := topology.FirstNetwork; n <= topology.LastNetwork; n++ {
		if plan := newAddressPlan(byte(n)); !overlapsRoute(routes, plan.v4) {
			return plan, nil
		}
	}
	return addressPlan{}, fmt.Errorf("choosing a network for the mesh: this machine has routes into each network from 10.%d.0.0/16 to 10.%d.0.0/16: set `network: 127.N.0.0/16` in the topology; with --capture, the mesh then uses 10.N.0.0/16", topology.FirstNetwork, topology.LastNetwork)
}

// overlapsRoute reports whether a route, other than the default route, overlaps the network.
func overlapsRoute(routes []netlink.Route, network netip.Prefix) bool {
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if ok && bits > 0 && netip.PrefixFrom(addr.Unmap(), bits).Overlaps(network) {
			return true
		}
	}
	return false
}

// capturedPlacement is the Placement of a mesh in network namespaces.
type capturedPlacement struct {
	plan      addressPlan
	resources Resources
	bridge    *netns.Bridge
	instances []*topology.Instance
	host      netip.Addr

	releaseList

	mu        sync.Mutex
	sandboxes map[*topology.Instance]*sandbox
}

// sandbox is the environment of an instance's processes: its network namespace, files and resolver.
type sandbox struct {
	namespace *netns.Namespace
	isolation netns.ProcessIsolation // isolation of the application
	dnsConfig *dns.ClientConfig
}

func (p *capturedPlacement) Describe() string                { return p.plan.v4.String() }
func (p *capturedPlacement) Captured() bool                  { return true }
func (p *capturedPlacement) Instances() []*topology.Instance { return p.instances }

func (p *capturedPlacement) ControlPlane() netip.Addr {
	v4, _ := p.plan.bridgeAddresses()
	return v4
}

func (p *capturedPlacement) Host() netip.Addr { return p.host }

// claimHostNetwork reserves a loopback network of this machine. On it, the control plane opens the ports that workloads
// may not use. Workloads cannot reach this network, because the egress listener connects only to 127.0.0.1.
func (p *capturedPlacement) claimHostNetwork() error {
	for n := topology.LastNetwork; n >= topology.FirstNetwork; n-- {
		network := topology.LoopbackNetwork(byte(n))
		claim, err := claimNetwork(network)
		if err != nil {
			continue
		}
		p.host = topology.ControlPlaneAddress(network)
		if errors.Join(checkPort(netip.AddrPortFrom(p.host, topology.PlaintextPort)), checkPort(netip.AddrPortFrom(p.host, topology.MonitoringPort))) == nil {
			p.onRelease(claim.Close)
			return nil
		}
		_ = claim.Close()
	}
	return fmt.Errorf("no network from 127.%d.0.0/16 to 127.%d.0.0/16 is free for the control plane's ports on this machine: stop other meshes (`pilotfish down`)", topology.FirstNetwork, topology.LastNetwork)
}

func (p *capturedPlacement) Listen(network, address string) (net.Listener, error) {
	return p.bridge.Listen(network, address)
}

func (p *capturedPlacement) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return p.bridge.Dial(ctx, network, address)
}

// Attach creates the instance's sandbox. It installs the redirection rules if the instance has a sidecar.
func (p *capturedPlacement) Attach(i *topology.Instance) (Attachment, error) {
	sb, err := p.newSandbox(i)
	if err != nil {
		return Attachment{}, err
	}
	agent := []string{"INSTANCE_IP=" + i.Proxy.String()}
	if i.Workload.HasSidecar() {
		agent = append(agent, "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_DNS_CAPTURE=true")
		if err := p.applyRedirection(i, sb); err != nil {
			return Attachment{}, err
		}
	}
	appIsolation, agentIsolation := sb.isolation, sb.isolation
	appIsolation.Capabilities = i.Workload.Capabilities()
	agentIsolation.Group, agentIsolation.Capabilities = proxyGroup, []uintptr{unix.CAP_NET_BIND_SERVICE}
	enter := func(s netns.ProcessIsolation) func() error {
		return func() error { return errors.Join(sb.namespace.EnterThread(), s.Enter()) }
	}
	forwarders := newLoopbackForwarders(sb, i)
	p.onRelease(forwarders.close)
	udp := &udpForwarder{namespace: sb.namespace}
	return Attachment{
		ExposeApp: forwarders.update, UnexposeApp: forwarders.close,
		AppEnv: noProxyVariables, AgentEnv: agent, EnterApp: enter(appIsolation), EnterAgent: enter(agentIsolation), Dial: sb.dial,
		Check:        func() error { return p.publish(i) },
		ForwardPorts: udp.update,
	}, nil
}

func (p *capturedPlacement) newSandbox(i *topology.Instance) (*sandbox, error) {
	namespace, err := netns.New()
	if err != nil {
		return nil, err
	}
	p.onRelease(namespace.Close)
	// Root may bind all ports. In the sandbox, other users may too, as in most containers.
	_ = namespace.Set("ipv4/ip_unprivileged_port_start", "0")
	bridge4, bridge6 := p.plan.bridgeAddresses()
	addresses := []netip.Prefix{netip.PrefixFrom(i.Proxy, p.plan.v4.Bits()), netip.PrefixFrom(i.Proxy6, p.plan.v6.Bits())}
	if err := p.bridge.Connect(namespace, "eth0", addresses, []netip.Addr{bridge4, bridge6}); err != nil {
		return nil, err
	}
	// Applications may send ICMP echo requests without CAP_NET_RAW.
	_ = namespace.Set("ipv4/ping_group_range", "0 2147483647")
	sb := &sandbox{namespace: namespace}
	if sb.isolation.Files, err = p.writeFiles(i); err != nil {
		return nil, err
	}
	// Nscd would return results of the machine's own resolver.
	sb.isolation.Hide = []string{"/run/nscd", "/var/run/nscd"}
	if sb.dnsConfig, err = dns.ClientConfigFromFile(sb.isolation.Files[resolvConfPath]); err != nil {
		return nil, fmt.Errorf("reading the resolver configuration of workload %s: %w", i.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sandboxes[i] = sb
	return sb, nil
}

const nsswitchPath = "/etc/nsswitch.conf"

// writeFiles writes the files that replace the machine's files in the sandbox of an instance. The result maps each
// path in the sandbox to the file that replaces it.
func (p *capturedPlacement) writeFiles(i *topology.Instance) (map[string]string, error) {
	var search []string
	if own, err := dns.ClientConfigFromFile(resolvConfPath); err == nil {
		search = own.Search
	}
	files := map[string]string{resolvConfPath: filepath.Join(p.resources.Dir, i.Name+".resolv.conf")}
	if err := writeFile(files[resolvConfPath], []byte(p.plan.resolvConf(i.Workload, search)), 0o644); err != nil {
		return nil, err
	}
	sources, err := os.ReadFile(nsswitchPath)
	if err != nil {
		return files, nil // without this file, the C library uses files and DNS by default
	}
	// Each instance has its own file. If a shared file were replaced, it would disappear for a moment in the other
	// sandboxes that mount it.
	files[nsswitchPath] = filepath.Join(p.resources.Dir, i.Name+".nsswitch.conf")
	return files, writeFile(files[nsswitchPath], []byte(useFilesAndDNS(string(sources))), 0o644)
}

// useFilesAndDNS replaces the sources of host names by files and DNS. Other sources, such as systemd's resolver, use
// unix sockets, and such queries cannot be captured.
func useFilesAndDNS(nsswitch string) string {
	lines := strings.Split(nsswitch, "\n")
	for n, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "hosts:") {
			lines[n] = "hosts: files dns"
		}
	}
	return strings.Join(lines, "\n")
}

// publish listens on this machine for a gateway's published ports.
func (p *capturedPlacement) publish(i *topology.Instance) error {
	for _, port := range i.Workload.Ports {
		if !port.Publish.IsValid() {
			continue
		}
		l, err := net.Listen("tcp", port.Publish.String())
		if err != nil {
			return fmt.Errorf("workload %s: %w", i.Name, portowner.Explain("tcp", port.Publish.String(), err))
		}
		to := netip.AddrPortFrom(i.Proxy, port.Port).String()
		r := newTCPForwarder(l, func(ctx context.Context, _ net.Conn) (net.Conn, error) { return p.bridge.Dial(ctx, "tcp", to) })
		p.onRelease(r.close)
	}
	return nil
}
