package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
)

// Network is how the workloads of a mesh reach their proxies and each other. There are two ways: an address of loopback
// for each, where an application is told of its proxy (Loopback), and a network namespace for each, where its traffic
// is captured. The mesh itself needs to know no more of them than this.
type Network interface {
	// Claim takes what the whole mesh needs, so that no other mesh can, and places the instances.
	Claim(t *Topology, use Resources) (Placement, error)
}

// Resources are what a network may use of the mesh that it is claimed for.
type Resources struct {
	// Agent is the command that starts the agent, whose other commands are there too; Environ is their environment.
	Agent   []string
	Environ []string
	// Dir is a folder for files, which goes with the mesh. It is made when it is needed.
	Dir string
	// Say tells people what they may want to know.
	Say func(format string, args ...any)
}

// Placement is a mesh's place in a network, until it is released.
type Placement interface {
	// Describe names the network for people: "127.77.0.0/16".
	Describe() string
	// Captured says whether the workloads' traffic is captured, so that nobody has to be told of a proxy.
	Captured() bool
	// Listen listens for the control plane, and Dial connects as somebody does who is in the mesh's network but no part of
	// the mesh. Addresses are not names.
	Listen(network, address string) (net.Listener, error)
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// ControlPlane is the address that the control plane listens on, and that every agent can reach.
	ControlPlane() netip.Addr
	// Instances are all instances of the topology, in its order, with their addresses.
	Instances() []*Instance
	// Attach readies the network of an instance, once, before its processes start. It may be called concurrently.
	Attach(i *Instance) (Attachment, error)
	// Release gives everything back.
	Release() error
}

// Attachment is what an instance's processes need to know of its network.
type Attachment struct {
	// AppEnv and AgentEnv are added to the environment of the application and of the agent.
	AppEnv   []string
	AgentEnv []string
	// EnterApp and EnterAgent take the calling thread, which its goroutine is locked to and nobody else can use after, to
	// where the application and the agent are started; nil: where the mesh itself is.
	EnterApp, EnterAgent func() error
	// Dial reaches the instance's addresses from the mesh's process, as its application does. Where traffic is captured it
	// finds names too, by the application's own resolver.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// FindApp makes the application reachable for its sidecar wherever it listens, and LoseApp takes that back before it is
	// started anew; nil where it has to listen where it is told.
	FindApp func(context.Context) error
	LoseApp func() error
	// LeadDatagrams has what the instance's processes send over UDP to services' addresses arrive where these are served;
	// nil where no service has an address of its own. It is called anew with all of them when that changes.
	LeadDatagrams func([]controlplane.DatagramPort) error
	// Check binds what the instance's processes will bind, and tells who is in the way.
	Check func() error
}

// Loopback gives each workload addresses of 127.0.0.0/8, which needs no privileges. An application reaches the mesh
// through its sidecar as HTTP proxy, and TCP services at addresses that it is told.
type Loopback struct{}

// Claim takes the topology's network, or the first that is free.
func (Loopback) Claim(t *Topology, _ Resources) (Placement, error) {
	if t.Network.IsValid() {
		return claimLoopback(t, t.Network)
	}
	var first error
	for n := firstNetwork; n <= lastNetwork; n++ {
		p, err := claimLoopback(t, loopbackNetwork(byte(n)))
		if err == nil {
			return p, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("no network from 127.%d.0.0/16 to 127.%d.0.0/16 is free; the first: %w", firstNetwork, lastNetwork, first)
}

type loopbackPlacement struct {
	network   netip.Prefix
	instances []*Instance
	claim     net.Listener
}

// claimLoopback takes one network. An abstract socket stands for it: other meshes of this machine, of whichever user,
// cannot bind it too, and the kernel gives it back whatever happens to us.
func claimLoopback(t *Topology, network netip.Prefix) (*loopbackPlacement, error) {
	claim, err := net.Listen("unix", "@pilotfish/"+network.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("network %s is taken by another mesh: %w", network, err)
	}
	p := &loopbackPlacement{network: network, claim: claim, instances: placeInstances(t, network)}
	for _, port := range []uint16{securePort, plainPort, monitoringPort, exchangePort} {
		if err := checkPort(netip.AddrPortFrom(p.ControlPlane(), port)); err != nil {
			return nil, errors.Join(err, claim.Close())
		}
	}
	return p, nil
}

func (p *loopbackPlacement) Describe() string         { return p.network.String() }
func (p *loopbackPlacement) Captured() bool           { return false }
func (p *loopbackPlacement) ControlPlane() netip.Addr { return controlPlaneAddress(p.network) }
func (p *loopbackPlacement) Instances() []*Instance   { return p.instances }
func (p *loopbackPlacement) Release() error           { return p.claim.Close() }

func (p *loopbackPlacement) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}

func (p *loopbackPlacement) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}

func (p *loopbackPlacement) Attach(i *Instance) (Attachment, error) {
	app := []string{"HTTP_PROXY=" + i.httpProxy(), "http_proxy=" + i.httpProxy(), "NO_PROXY=", "no_proxy="}
	agent := []string{
		"ISTIO_META_INTERCEPTION_MODE=NONE",
		"PROXY_BIND_ADDRESS=" + i.Proxy.String(),
	}
	if i.workload.Type != Gateway {
		agent = append(agent, "ISTIO_META_APP_ADDRESS="+i.App.String(), "ISTIO_META_ENABLE_DNS_SERVER=true")
	}
	if list := i.upstreamListeners(); list != "" {
		agent = append(agent, "ISTIO_META_UPSTREAM_LISTENERS="+list)
	}
	if list := i.published(); list != "" {
		agent = append(agent, "ISTIO_META_PUBLISH="+list)
	}
	return Attachment{AppEnv: app, AgentEnv: agent, Dial: p.Dial, Check: i.checkPorts}, nil
}

// checkPorts finds ports in use before the processes that would fail for it start, since they tell less about it.
// Envoy would even share a port with another Envoy in silence.
func (i *Instance) checkPorts() error {
	for _, address := range i.listenAddresses() {
		if err := checkPort(address); err != nil {
			return fmt.Errorf("workload %s: %w", i.Name, err)
		}
	}
	return nil
}

func (i *Instance) listenAddresses() []netip.AddrPort {
	var all []netip.AddrPort
	for _, port := range []uint16{adminPort, statusPort, readinessPort, prometheusPort, tokenPort} {
		all = append(all, netip.AddrPortFrom(i.Proxy, port))
	}
	if i.workload.Type != Gateway {
		all = append(all, netip.AddrPortFrom(i.Proxy, proxyPort), netip.AddrPortFrom(i.Proxy, namesPort))
	}
	for _, p := range i.workload.Ports {
		if p.Protocol == "UDP" {
			continue
		}
		at := netip.AddrPortFrom(i.Proxy, p.Port)
		if p.Publish.IsValid() {
			at = p.Publish
		}
		all = append(all, at)
		if i.workload.Type != Gateway {
			all = append(all, netip.AddrPortFrom(i.App, p.Port))
		}
	}
	for n := range i.workload.Upstreams {
		all = append(all, i.upstreamAddress(n))
	}
	return all
}

// checkPort says who is in the way of listening at an address.
func checkPort(at netip.AddrPort) error {
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return portowner.Explain("tcp", at.String(), err)
	}
	return l.Close()
}

// upstreamListeners is what the sidecar is told of the workload's TCP upstreams.
func (i *Instance) upstreamListeners() string {
	list := ""
	for n, u := range i.workload.Upstreams {
		list += fmt.Sprintf(",%s:%d=%s", u.Host, u.Port, i.upstreamAddress(n))
	}
	return trimComma(list)
}

// published is what a gateway's proxy is told of where its ports are listened on.
func (i *Instance) published() string {
	list := ""
	for _, p := range i.workload.Ports {
		if p.Publish.IsValid() {
			list += "," + strconv.Itoa(int(p.Port)) + "=" + p.Publish.String()
		}
	}
	return trimComma(list)
}

func trimComma(list string) string {
	if list == "" {
		return ""
	}
	return list[1:]
}
