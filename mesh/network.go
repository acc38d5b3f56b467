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
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// Network determines how the workloads of a mesh connect to their proxies and to each other. Loopback assigns loopback
// addresses, and applications must be configured to use their proxy. Captured uses network namespaces, and the kernel
// redirects the traffic.
type Network interface {
	// Claim reserves the mesh's network exclusively on this machine, and assigns the addresses of the instances.
	Claim(t *topology.Topology, use Resources) (Placement, error)
}

// Resources contains the resources of the mesh that a network may use.
type Resources struct {
	// Agent is the command that starts the agent. The binary also contains the agent's other commands. Environ is the
	// agent's environment.
	Agent   []string
	Environ []string
	// Dir is a directory for files. The network creates the directory if it needs files. The mesh removes the
	// directory when the mesh stops.
	Dir string
	// LookupService returns the addresses of a service, for instances without a sidecar.
	LookupService serviceLookup
	// Logf logs a message for the user.
	Logf func(format string, args ...any)
}

// Placement is a claimed network, until it is released.
type Placement interface {
	// Describe returns a description of the network for messages, such as "127.77.0.0/16".
	Describe() string
	// Captured reports whether the kernel redirects the workloads' traffic to their proxies.
	Captured() bool
	// Listen opens a listener for the control plane. Dial connects as a client in the mesh's network that has no
	// sidecar. Addresses must contain IP addresses.
	Listen(network, address string) (net.Listener, error)
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// ControlPlane returns the address on which the control plane listens for agents.
	ControlPlane() netip.Addr
	// Host returns the loopback address for those control plane ports that workloads must not reach.
	Host() netip.Addr
	// Instances returns all instances of the topology with their addresses, in the order of the topology.
	Instances() []*topology.Instance
	// Attach prepares the network of an instance. It is called once per instance, before the instance's processes
	// start. It is safe for concurrent use.
	Attach(i *topology.Instance) (Attachment, error)
	// Release releases all resources of the placement.
	Release() error
}

// Attachment describes how an instance's processes use its network.
type Attachment struct {
	// AppEnv and AgentEnv are added to the environments of the application and the agent.
	AppEnv   []string
	AgentEnv []string
	// EnterApp and EnterAgent move the calling thread to the network of the application or the agent, before its start.
	// The thread must be locked to its goroutine, and cannot be used for other purposes afterwards. If they are nil,
	// the processes use the network of the mesh's own process.
	EnterApp, EnterAgent func() error
	// Dial connects from the mesh's process as the instance's application would. If traffic is captured, it also
	// resolves names with the application's resolver.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// ExposeApp makes the application reachable for its sidecar, whatever address the application listens on.
	// UnexposeApp reverts that before the application is restarted. Both are nil if the application must listen on its
	// assigned address.
	ExposeApp   func(context.Context) error
	UnexposeApp func() error
	// ForwardPorts forwards packets from the instance to services' addresses to the services' endpoints. Each call
	// replaces the ports of the previous one. ForwardPorts is nil if services have no addresses of their own.
	ForwardPorts func([]controlplane.ForwardedPort) error
	// Check checks that the ports of the instance's processes are free, or opens the instance's published ports. Its
	// error names the process that uses a port.
	Check func() error
}

// Loopback is the Network in which each workload has addresses in 127.0.0.0/8. It needs no privileges. An application
// reaches services through its sidecar's HTTP proxy, and TCP services at addresses that its environment contains.
type Loopback struct{}

// Claim reserves the topology's network, or the first free one.
func (Loopback) Claim(t *topology.Topology, use Resources) (Placement, error) {
	if t.Network.IsValid() {
		return claimLoopback(t, t.Network, use)
	}
	var first error
	for n := topology.FirstNetwork; n <= topology.LastNetwork; n++ {
		p, err := claimLoopback(t, topology.LoopbackNetwork(byte(n)), use)
		if err == nil {
			return p, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("no network from 127.%d.0.0/16 to 127.%d.0.0/16 is free: stop other meshes (`pilotfish down`); the error of the first network: %w", topology.FirstNetwork, topology.LastNetwork, first)
}

type loopbackPlacement struct {
	network   netip.Prefix
	instances []*topology.Instance
	lookup    serviceLookup
	releaseList
}

// claimNetwork reserves a loopback network by an abstract socket. Other meshes on this machine, of any user, cannot
// bind a socket with the same name. The kernel releases it when this process ends.
func claimNetwork(network netip.Prefix) (net.Listener, error) {
	claim, err := net.Listen("unix", "@pilotfish/"+network.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("another mesh uses the network %s: %w", network, err)
	}
	return claim, nil
}

// claimLoopback reserves this network and checks that the control plane's ports in it are free.
func claimLoopback(t *topology.Topology, network netip.Prefix, use Resources) (*loopbackPlacement, error) {
	claim, err := claimNetwork(network)
	if err != nil {
		return nil, err
	}
	p := &loopbackPlacement{network: network, lookup: use.LookupService, instances: topology.AssignAddresses(t, network)}
	p.onRelease(claim.Close)
	for _, port := range []uint16{topology.SecurePort, topology.PlaintextPort, topology.MonitoringPort, topology.TokenExchangePort} {
		if err := checkPort(netip.AddrPortFrom(p.ControlPlane(), port)); err != nil {
			return nil, errors.Join(err, p.Release())
		}
	}
	return p, nil
}

func (p *loopbackPlacement) Describe() string                { return p.network.String() }
func (p *loopbackPlacement) Captured() bool                  { return false }
func (p *loopbackPlacement) ControlPlane() netip.Addr        { return topology.ControlPlaneAddress(p.network) }
func (p *loopbackPlacement) Host() netip.Addr                { return p.ControlPlane() }
func (p *loopbackPlacement) Instances() []*topology.Instance { return p.instances }

func (p *loopbackPlacement) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}

func (p *loopbackPlacement) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}

func (p *loopbackPlacement) Attach(i *topology.Instance) (Attachment, error) {
	if i.Workload.NoSidecar {
		return p.attachWithoutSidecar(i), nil
	}
	app := []string{"HTTP_PROXY=" + i.HTTPProxyURL(), "http_proxy=" + i.HTTPProxyURL(), "NO_PROXY=", "no_proxy="}
	agent := []string{
		"ISTIO_META_INTERCEPTION_MODE=NONE",
		"PROXY_BIND_ADDRESS=" + i.Proxy.String(),
		// All users of the machine can connect to the address, so the port must accept only this user.
		"STATUS_PORT_USERS=own",
	}
	if i.Workload.Type != topology.Gateway {
		agent = append(agent, "ISTIO_META_APP_ADDRESS="+i.App.String(), "ISTIO_META_ENABLE_DNS_SERVER=true")
	}
	if list := upstreamListeners(i); list != "" {
		agent = append(agent, "ISTIO_META_UPSTREAM_LISTENERS="+list)
	}
	if list := publishedPorts(i); list != "" {
		agent = append(agent, "ISTIO_META_PUBLISH="+list)
	}
	return Attachment{AppEnv: app, AgentEnv: agent, Dial: p.Dial, Check: func() error { return checkPorts(i) }}, nil
}

// checkPorts returns an error if a port of the instance is in use. This error is clearer than the error of a process
// that cannot listen. Envoy would even share a port with another Envoy without an error.
func checkPorts(i *topology.Instance) error {
	for _, address := range listenAddresses(i) {
		if err := checkPort(address); err != nil {
			return fmt.Errorf("workload %s: %w", i.Name, err)
		}
	}
	return nil
}

func listenAddresses(i *topology.Instance) []netip.AddrPort {
	var all []netip.AddrPort
	if !i.Workload.NoSidecar {
		for _, port := range []uint16{topology.StatusPort, topology.ReadinessPort, topology.PrometheusPort, topology.TokenPort} {
			all = append(all, netip.AddrPortFrom(i.Proxy, port))
		}
	}
	if i.Workload.HasSidecar() {
		all = append(all, netip.AddrPortFrom(i.Proxy, topology.HTTPProxyPort))
	}
	if i.Workload.Type != topology.Gateway {
		all = append(all, i.DNS)
	}
	for _, p := range i.Workload.Ports {
		if p.Protocol == "UDP" {
			continue
		}
		at := netip.AddrPortFrom(i.Proxy, p.Port)
		if p.Publish.IsValid() {
			at = p.Publish
		}
		all = append(all, at)
		if i.Workload.HasSidecar() {
			all = append(all, netip.AddrPortFrom(i.App, p.Port))
		}
	}
	for n := range i.Workload.Upstreams {
		all = append(all, i.UpstreamAddress(n))
	}
	return all
}

// checkPort returns an error that names the process that uses the address.
func checkPort(at netip.AddrPort) error {
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return portowner.Explain("tcp", at.String(), err)
	}
	return l.Close()
}

// upstreamListeners returns the node metadata that defines the proxy's listeners for TCP upstreams of the workload.
func upstreamListeners(i *topology.Instance) string {
	list := ""
	for n, u := range i.Workload.Upstreams {
		list += fmt.Sprintf(",%s:%d=%s", u.Host, u.Port, i.UpstreamAddress(n))
	}
	return trimComma(list)
}

// publishedPorts returns the node metadata with the addresses of a gateway's published ports.
func publishedPorts(i *topology.Instance) string {
	list := ""
	for _, p := range i.Workload.Ports {
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
