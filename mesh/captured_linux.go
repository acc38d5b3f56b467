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

	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
	"github.com/pilotfish-mesh/pilotfish/mesh/netns"
)

// CanCapture says why this process cannot run a captured mesh; nil when it can. It tries in a namespace of its own what
// such a mesh does.
func CanCapture() error {
	err := tryCapture()
	if err == nil {
		return nil
	}
	remedy := ""
	if os.Geteuid() != 0 {
		remedy = namespaceRemedy(err)
	}
	return fmt.Errorf("%w: it takes root, with CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_SETGID and CAP_SETPCAP, and a kernel with nftables%s", err, remedy)
}

func tryCapture() error {
	n, err := netns.New()
	if err != nil {
		return err
	}
	defer n.Close()
	if err := catchOutgoing(n, planCaptured(firstNetwork)); err != nil {
		return fmt.Errorf("redirecting by nftables: %w", err)
	}
	l, err := n.Listen("tcp", "127.0.0.1:53")
	if err != nil {
		return err
	}
	_ = l.Close()
	netns.OnThread(func() { // what every process of such a mesh is started with
		err = netns.Surroundings{Hide: []string{"/run/nscd"}, Group: proxyGroup}.Enter()
	})
	return err
}

// Claim makes the bridge, and the way out of the mesh's network and into it.
func (Captured) Claim(t *Topology, use Resources) (Placement, error) {
	plan, err := choosePlan(t)
	if err != nil {
		return nil, err
	}
	bridge4, bridge6 := plan.bridge()
	bridge, err := netns.NewBridge(
		netip.PrefixFrom(bridge4, plan.v4.Bits()), netip.PrefixFrom(bridge6, plan.v6.Bits()),
		netip.PrefixFrom(plan.host(), 32))
	if err != nil {
		return nil, fmt.Errorf("%w (--no-capture runs the mesh without network namespaces)", err)
	}
	p := &capturedPlacement{plan: plan, use: use, bridge: bridge, instances: plan.place(t), places: map[*Instance]*place{}}
	p.onRelease(bridge.Close)
	if err := errors.Join(os.MkdirAll(use.Dir, 0o700), p.openOutside()); err != nil {
		return nil, errors.Join(err, p.Release())
	}
	return p, nil
}

// choosePlan takes the N of the topology's network, or the first that the machine has no other use for.
func choosePlan(t *Topology) (capturedPlan, error) {
	if t.Network.IsValid() {
		return planCaptured(t.Network.Addr().As4()[1]), nil
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return capturedPlan{}, fmt.Errorf("reading this machine's routes: %w", err)
	}
	for n := firstNetwork; n <= lastNetwork; n++ {
		if plan := planCaptured(byte(n)); !anyOverlap(routes, plan.v4) {
			return plan, nil
		}
	}
	return capturedPlan{}, fmt.Errorf("this machine has routes into each network from 10.%d.0.0/16 to 10.%d.0.0/16: choose one with `network: 127.N.0.0/16` in the topology, which is 10.N.0.0/16 for a mesh that is captured", firstNetwork, lastNetwork)
}

// anyOverlap says whether a route leads into the network; the one for all else does not count.
func anyOverlap(routes []netlink.Route, network netip.Prefix) bool {
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

// capturedPlacement is a mesh in namespaces of its own.
type capturedPlacement struct {
	plan      capturedPlan
	use       Resources
	bridge    *netns.Bridge
	instances []*Instance

	mu      sync.Mutex
	places  map[*Instance]*place
	release []func() error
}

// place is where an instance's processes run.
type place struct {
	space  *netns.Namespace
	around netns.Surroundings // of the application
	names  *dns.ClientConfig
}

func (p *capturedPlacement) Describe() string       { return p.plan.v4.String() }
func (p *capturedPlacement) Captured() bool         { return true }
func (p *capturedPlacement) Instances() []*Instance { return p.instances }

func (p *capturedPlacement) ControlPlane() netip.Addr {
	v4, _ := p.plan.bridge()
	return v4
}

func (p *capturedPlacement) Listen(network, address string) (net.Listener, error) {
	return p.bridge.Listen(network, address)
}

func (p *capturedPlacement) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return p.bridge.Dial(ctx, network, address)
}

func (p *capturedPlacement) onRelease(f func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release = append(p.release, f)
}

// Release lets go of everything, the last first.
func (p *capturedPlacement) Release() error {
	p.mu.Lock()
	release := p.release
	p.release = nil
	p.mu.Unlock()
	var errs []error
	for n := len(release) - 1; n >= 0; n-- {
		errs = append(errs, release[n]())
	}
	return errors.Join(errs...)
}

// Attach makes the instance's namespace, and has its traffic captured there.
func (p *capturedPlacement) Attach(i *Instance) (Attachment, error) {
	at, err := p.makePlace(i)
	if err != nil {
		return Attachment{}, err
	}
	agent := []string{"INSTANCE_IP=" + i.Proxy.String()}
	if i.workload.Type != Gateway {
		agent = append(agent, "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_DNS_CAPTURE=true")
		if err := p.capture(i, at); err != nil {
			return Attachment{}, err
		}
	}
	ofAgent := at.around
	ofAgent.Group = proxyGroup
	enter := func(s netns.Surroundings) func() error {
		return func() error { return errors.Join(at.space.EnterThread(), s.Enter()) }
	}
	// A proxy that the user's own shell needs would take the application's requests past its sidecar.
	app := []string{"HTTP_PROXY=", "http_proxy=", "HTTPS_PROXY=", "https_proxy=", "ALL_PROXY=", "all_proxy="}
	doors := newDoors(at, i)
	p.onRelease(doors.close)
	leads := &datagramLeads{space: at.space}
	return Attachment{
		FindApp: doors.fit, LoseApp: doors.close,
		AppEnv: app, AgentEnv: agent, EnterApp: enter(at.around), EnterAgent: enter(ofAgent), Dial: at.dial,
		Check:         func() error { return p.publish(i) },
		LeadDatagrams: leads.lead,
	}, nil
}

func (p *capturedPlacement) makePlace(i *Instance) (*place, error) {
	space, err := netns.New()
	if err != nil {
		return nil, err
	}
	p.onRelease(space.Close)
	// Root's processes may bind all ports; those of an ordinary user may so here, as in most containers.
	_ = space.Set("ipv4/ip_unprivileged_port_start", "0")
	bridge4, bridge6 := p.plan.bridge()
	addresses := []netip.Prefix{netip.PrefixFrom(i.Proxy, p.plan.v4.Bits()), netip.PrefixFrom(i.Proxy6, p.plan.v6.Bits())}
	if err := p.bridge.Plug(space, "eth0", addresses, []netip.Addr{bridge4, bridge6}); err != nil {
		return nil, err
	}
	at := &place{space: space}
	if at.around.Files, err = p.writeFiles(i); err != nil {
		return nil, err
	}
	at.around.Hide = []string{"/run/nscd", "/var/run/nscd"} // which would answer from the machine's own resolver
	if at.names, err = dns.ClientConfigFromFile(at.around.Files[resolvConfPath]); err != nil {
		return nil, fmt.Errorf("the resolver of workload %s: %w", i.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.places[i] = at
	return at, nil
}

const (
	resolvConfPath = "/etc/resolv.conf"
	nsswitchPath   = "/etc/nsswitch.conf"
)

// writeFiles lays out what an instance's processes find in the place of the machine's own files.
func (p *capturedPlacement) writeFiles(i *Instance) (map[string]string, error) {
	var search []string
	if own, err := dns.ClientConfigFromFile(resolvConfPath); err == nil {
		search = own.Search
	}
	files := map[string]string{resolvConfPath: filepath.Join(p.use.Dir, i.Name+".resolv.conf")}
	if err := writeFile(files[resolvConfPath], []byte(p.plan.resolvConf(i.workload, search)), 0o644); err != nil {
		return nil, err
	}
	sources, err := os.ReadFile(nsswitchPath)
	if err != nil {
		return files, nil // the C library's own default is files and DNS
	}
	// Each has its own: a file that is replaced for one while it is mounted for another is not there for that moment.
	files[nsswitchPath] = filepath.Join(p.use.Dir, i.Name+".nsswitch.conf")
	return files, writeFile(files[nsswitchPath], []byte(namesByDNS(string(sources))), 0o644)
}

// namesByDNS has host names looked up in files and by DNS: services such as systemd's resolver are asked by sockets in the
// file system, past the mesh.
func namesByDNS(nsswitch string) string {
	lines := strings.Split(nsswitch, "\n")
	for n, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "hosts:") {
			lines[n] = "hosts: files dns"
		}
	}
	return strings.Join(lines, "\n")
}

// publish listens on this machine for a gateway's ports.
func (p *capturedPlacement) publish(i *Instance) error {
	for _, port := range i.workload.Ports {
		if !port.Publish.IsValid() {
			continue
		}
		l, err := net.Listen("tcp", port.Publish.String())
		if err != nil {
			return fmt.Errorf("workload %s: %w", i.Name, portowner.Explain("tcp", port.Publish.String(), err))
		}
		to := netip.AddrPortFrom(i.Proxy, port.Port).String()
		r := newRelay(l, func(ctx context.Context, _ net.Conn) (net.Conn, error) { return p.bridge.Dial(ctx, "tcp", to) })
		p.onRelease(r.close)
	}
	return nil
}
