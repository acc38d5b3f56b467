package registry

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// EndpointPolicy restricts the endpoints that documents may contain. Documents may be written by tenants, but unix
// sockets and loopback ports on a proxy's machine belong to the platform. A nil policy allows no unix sockets, and
// allows gateways no local addresses. The policy is immutable and safe for concurrent use.
type EndpointPolicy struct {
	// AllowUnix lists absolute paths of allowed sockets, and of directories with allowed sockets.
	AllowUnix []string
	// DenyUnix lists exceptions to AllowUnix, in the same form.
	DenyUnix []string
	// AllowNetworks lists networks of loopback or link-local addresses to which gateways may connect.
	AllowNetworks []netip.Prefix
	// PlaintextPorts and TLSPorts are the ports of the control plane on loopback, in addition to the default ports.
	// Proxies do not connect to them on their own machine. They also do not connect to PlaintextPorts of a host name.
	PlaintextPorts, TLSPorts []uint32
}

// Check returns an error if a path of the policy is not absolute and clean.
func (p *EndpointPolicy) Check() error {
	for _, file := range slices.Concat(p.AllowUnix, p.DenyUnix) {
		if !isCleanPath(file) {
			return fmt.Errorf("unix endpoint path %q is not an absolute path without \"..\", \".\" and double or final slashes: write %q",
				file, path.Clean("/"+strings.TrimPrefix(file, "@")))
		}
	}
	return nil
}

// Refusal is the reason why proxies do not connect to an endpoint. The zero value means that proxies connect to it.
type Refusal struct {
	Reason, Remedy string
	// GatewaysOnly: only gateways refuse the endpoint; sidecars connect to it.
	GatewaysOnly bool
}

// AppliesToAll reports whether all proxies refuse to connect to the endpoint.
func (r Refusal) AppliesToAll() bool { return r.Reason != "" && !r.GatewaysOnly }

// Message describes the refusal and its effect for the author of the document.
func (r Refusal) Message() string {
	if r.GatewaysOnly {
		return "gateways do not connect to this endpoint: " + r.Reason
	}
	return "no proxy connects to this endpoint: " + r.Reason
}

// reservedPorts contains the ports of a proxy and its agent, and the ports of a control plane that may be reachable on
// loopback addresses.
var reservedPorts = []uint32{
	15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090, // proxy and agent
	15463,                      // token exchange
	15010, 15012, 15014, 15016, // control plane
}

// authenticatedPorts contains the reserved ports that use TLS and require credentials. An endpoint with a host name may
// have these ports, because a ServiceEntry may contain a control plane on another machine.
var authenticatedPorts = []uint32{15012, 15016}

// ReservedPorts returns the ports to which proxies do not connect if the endpoint has a host name, sorted.
func (o Options) ReservedPorts() []uint32 {
	ports := slices.Concat(reservedPorts, []uint32{o.AdminPort, o.StatusPort}, o.Endpoints.plaintextPorts())
	slices.Sort(ports)
	return slices.DeleteFunc(slices.Compact(ports), func(port uint32) bool { return !o.isReservedForNames(port) })
}

func (o Options) isReserved(port uint32) bool {
	return port != 0 && (slices.Contains(reservedPorts, port) || port == o.AdminPort || port == o.StatusPort ||
		slices.Contains(o.Endpoints.plaintextPorts(), port) || slices.Contains(o.Endpoints.tlsPorts(), port))
}

// isReservedForNames reports whether proxies do not connect to this port if the endpoint has a host name. The proxy's
// resolver could return a loopback address for the name, which the control plane cannot detect.
func (o Options) isReservedForNames(port uint32) bool {
	return o.isReserved(port) && !slices.Contains(authenticatedPorts, port) && !slices.Contains(o.Endpoints.tlsPorts(), port)
}

// Refusal returns the reason why proxies do not connect to an endpoint. address is a unix socket ("unix:///path"), an
// IP address or a host name. port is 0 if it is unknown.
func (o Options) Refusal(address string, port uint32) Refusal {
	if file, ok := strings.CutPrefix(address, "unix:"); ok {
		return o.Endpoints.refuseUnix(strings.TrimPrefix(file, "//"))
	}
	addr, kind := classifyAddress(address)
	switch {
	case kind == remote && !addr.IsValid() && o.isReservedForNames(port):
		return Refusal{
			Reason: fmt.Sprintf("port %d belongs to the proxy or the control plane, and the name may resolve to the proxy's own machine", port),
			Remedy: "use another port, or list the IP addresses with resolution: STATIC",
		}
	case kind == remote:
		return Refusal{}
	case kind == sameMachine && o.isReserved(port):
		return Refusal{
			Reason: fmt.Sprintf("port %d at this address is a port of the proxy or the control plane", port),
			Remedy: "use the address and the port of the application",
		}
	case addr.IsValid() && o.Endpoints.allowsNetwork(addr):
		return Refusal{}
	}
	return Refusal{
		Reason: "for a gateway this is " + string(kind), GatewaysOnly: true,
		Remedy: "use an address that other machines can reach; if only sidecars call the endpoint, you can ignore this finding",
	}
}

// RefuseOwn returns the reason why a proxy does not connect to an endpoint of its own workload, such as a Sidecar's
// defaultEndpoint. In such an endpoint, the unspecified address (0.0.0.0 or ::) stands for the workload's address.
func (o Options) RefuseOwn(endpoint string) Refusal {
	if r := o.refusalForEndpoint(endpoint); r.AppliesToAll() {
		return r
	}
	return Refusal{}
}

// RefuseForeign is like RefuseOwn, but for a gateway and a document that is not in the gateway's namespace.
func (o Options) RefuseForeign(endpoint string) Refusal {
	r := o.refusalForEndpoint(endpoint)
	if r.GatewaysOnly {
		r.Remedy = "move the document to the gateway's namespace, or use a ServiceEntry with an address that other machines can reach"
	}
	return r
}

// refusalForEndpoint is like Refusal, but endpoint is an "address:port" or a unix socket.
func (o Options) refusalForEndpoint(endpoint string) Refusal {
	if at, err := netip.ParseAddrPort(endpoint); err == nil {
		return o.Refusal(at.Addr().String(), uint32(at.Port()))
	}
	return o.Refusal(endpoint, 0)
}

// addressKind is the kind of an address from the point of view of a proxy.
type addressKind string

const (
	remote      addressKind = ""
	sameMachine addressKind = "an address of the gateway's own machine"
	linkLocal   addressKind = "a link-local, multicast or broadcast address"
)

// embeddedIPv4Networks contains the IPv6 networks whose last four bytes are an IPv4 address: IPv4-compatible addresses,
// and NAT64.
var embeddedIPv4Networks = []netip.Prefix{netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96")}

// classifyAddress returns the kind of an IP address or host name. It also returns the parsed IP address, which is
// invalid for a host name.
func classifyAddress(address string) (netip.Addr, addressKind) {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Addr{}, classifyName(address)
	}
	addr = addr.WithZone("").Unmap()
	for _, prefix := range embeddedIPv4Networks {
		if b := addr.As16(); prefix.Contains(addr) && !addr.IsLoopback() {
			addr = netip.AddrFrom4([4]byte(b[12:]))
		}
	}
	switch {
	case addr.IsLoopback() || addr.Is4() && addr.As4()[0] == 0 || addr.IsUnspecified():
		return addr, sameMachine
	case addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return addr, linkLocal
	}
	return addr, remote
}

// localNames contains names that /etc/hosts usually maps to the local machine. These names may also be in the domain
// localdomain.
var localNames = []string{"localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}

// classifyName returns the kind of a host name, which may be a wildcard. If the last label is a number, the name is not
// a DNS name, but some resolvers parse it as an address (127.1, 0x7f000001). Such a name therefore counts as local.
func classifyName(name string) addressKind {
	name = strings.TrimPrefix(strings.TrimRight(strings.ToLower(name), "."), "*.")
	last := name[strings.LastIndexByte(name, '.')+1:]
	hex, isHex := strings.CutPrefix(last, "0x")
	switch {
	case slices.Contains(localNames, strings.TrimSuffix(name, ".localdomain")), last == "localhost",
		last != "" && strings.Trim(last, "0123456789") == "", isHex && strings.Trim(hex, "0123456789abcdef") == "":
		return sameMachine
	}
	return remote
}

func (p *EndpointPolicy) plaintextPorts() []uint32 {
	if p == nil {
		return nil
	}
	return p.PlaintextPorts
}

func (p *EndpointPolicy) tlsPorts() []uint32 {
	if p == nil {
		return nil
	}
	return p.TLSPorts
}

func (p *EndpointPolicy) allowsNetwork(addr netip.Addr) bool {
	return p != nil && slices.ContainsFunc(p.AllowNetworks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

func (p *EndpointPolicy) refuseUnix(file string) Refusal {
	const remedy = "use an IP address, or allow the path with --allow-unix-endpoints of the control plane"
	switch {
	case strings.HasPrefix(file, "@"):
		return Refusal{Reason: "abstract unix sockets are not allowed", Remedy: "use an IP address, or a socket file that the platform allows"}
	case !isCleanPath(file):
		return Refusal{Reason: "the socket's path is not absolute, or has \"..\", \".\" or double slashes", Remedy: "write an absolute path without \"..\", \".\" and double slashes"}
	case isProxySocket(file):
		return Refusal{Reason: "the socket belongs to a proxy or its agent", Remedy: "use the application's address or socket"}
	case p == nil || !isBelow(file, p.AllowUnix) || isBelow(file, p.DenyUnix):
		return Refusal{Reason: "the platform does not allow unix sockets at this path", Remedy: remedy}
	}
	return Refusal{}
}

func isCleanPath(file string) bool {
	return path.IsAbs(file) && path.Clean(file) == file && !strings.ContainsRune(file, 0)
}

// isBelow reports whether paths contains file or one of its parent directories.
func isBelow(file string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		return file == p || strings.HasPrefix(file, strings.TrimSuffix(p, "/")+"/")
	})
}

// isProxySocket reports whether a directory in the path has the name of a directory in which agents create sockets.
func isProxySocket(file string) bool {
	for _, dir := range []string{"/etc/istio/", "/workload-spiffe-uds/", "/credential-uds/"} {
		if strings.Contains(file, dir) {
			return true
		}
	}
	return false
}

// checkEndpoint returns a finding about an endpoint in a field of a document. ok is false if the endpoint is allowed.
func (o Options) checkEndpoint(r *config.Resource, field, address string, ports ...uint32) (p config.Problem, ok bool) {
	refusal := o.Refusal(address, 0)
	for _, port := range ports {
		if one := o.Refusal(address, port); one.AppliesToAll() {
			refusal = one
		}
	}
	if refusal.Reason == "" {
		return config.Problem{}, false
	}
	return withCode(config.EndpointRefused, problemAt(r, field, address, refusal.Message(), refusal.Remedy)), true
}

// checkWorkloadEntry returns the findings about a WorkloadEntry.
func (o Options) checkWorkloadEntry(r *config.Resource, entry *networking.WorkloadEntry) []config.Problem {
	ports := slices.Sorted(maps.Values(entry.GetPorts()))
	if p, ok := o.checkEndpoint(r, "spec.address", entry.GetAddress(), ports...); ok {
		return []config.Problem{p}
	}
	return nil
}
