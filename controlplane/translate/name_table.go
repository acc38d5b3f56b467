package translate

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// nameTableName is the name of the only resource of its type. In Istio the name is empty.
const nameTableName = "names"

// NameTable returns the name table of a proxy: the mesh's host names and their addresses. The proxy's agent uses it to
// answer DNS queries. If the kernel redirects the workload's connections, the table contains the services' virtual IPs.
// Otherwise it contains only addresses at which a process listens.
func NameTable(s *snapshot.Snapshot, p *Proxy) (*xds.Resource, error) {
	v := newView(s, p)
	if len(p.Upstreams) > 0 {
		return v.nameTable()
	}
	return s.OwnCache.Get(nameTableKey{v.scope, p.Interception, p.capturesVirtualIPs()}, v.nameTable)
}

// nameTableKey contains all values on which a name table depends within one snapshot.
type nameTableKey struct {
	scope        *snapshot.Scope
	interception Interception
	virtual      bool
}

// capturesVirtualIPs reports whether the proxy captures connections to the virtual IP of a service. No process listens
// at that address.
func (p *Proxy) capturesVirtualIPs() bool { return p.isCaptured() && !p.Proxyless }

// reachableAddresses returns those addresses of a service that the proxy's workload can reach.
func (p *Proxy) reachableAddresses(svc *registry.Service) []netip.Addr {
	if svc.Virtual.IsValid() && !p.capturesVirtualIPs() {
		return nil
	}
	return svc.Addresses
}

// nameInfo is an entry of the name table: the data of one host name.
type nameInfo struct {
	addresses            []netip.Addr
	registry             string
	shortName, namespace string
	ports                []string // for example "_http._tcp 80"
}

func (v proxyView) nameTable() (*xds.Resource, error) {
	table := make(map[string]nameInfo, len(v.scope.Services))
	for _, svc := range v.scope.Services {
		v.addNames(table, svc)
	}
	return xds.NewRawResource(nameTableName, xds.NameTableType, encodeNames(table)), nil
}

// addNames adds a service's names. It omits a service that has no address that the workload can reach. The agent then
// forwards queries for it to the upstream resolver.
func (v proxyView) addNames(table map[string]nameInfo, svc *registry.Service) {
	info := nameInfo{registry: "External"}
	if svc.Kubernetes {
		info.registry = "Kubernetes"
	}
	own := v.p.reachableAddresses(svc)
	switch upstreams := v.serviceUpstreams(svc); {
	case len(upstreams) > 0:
		info.addUpstreams(svc, upstreams)
	case len(own) > 0 && v.p.Interception != None:
		info.addresses, info.ports = own, servicePorts(svc)
	default:
		v.addInstances(table, &info, svc)
	}
	if len(info.addresses) == 0 { // for example, a service without instances
		info.addresses, info.ports = own, servicePorts(svc)
	}
	if len(info.addresses) == 0 {
		return
	}
	for known := range v.scope.VisibleNames(svc) {
		if known != svc && v.scope.Service(known.Hostname) != nil {
			continue // the name is already that of a ServiceEntry's host
		}
		if info.shortName, info.namespace = "", ""; known.Kubernetes {
			info.registry, info.shortName, info.namespace = "Kubernetes", known.Name, known.Namespace
		}
		table[known.Hostname] = info
	}
}

func servicePorts(svc *registry.Service) []string {
	var ports []string
	for _, p := range svc.Ports {
		ports = append(ports, portName(p, p.Number))
	}
	return ports
}

// portName formats a port as an SRV query name followed by the port number.
func portName(p registry.Port, number uint32) string {
	transport := "_tcp"
	if p.Protocol == registry.UDP {
		transport = "_udp"
	}
	return "_" + p.Name + "." + transport + " " + strconv.FormatUint(uint64(number), 10)
}

// serviceUpstreams returns the sidecar's upstream listeners for a service.
func (v proxyView) serviceUpstreams(svc *registry.Service) []Upstream {
	var out []Upstream
	for _, u := range v.p.Upstreams {
		if _, has := svc.Port(u.Port); has && v.scope.Resolve(u.Host, v.p.Namespace) == svc {
			out = append(out, u)
		}
	}
	return out
}

func (n *nameInfo) addUpstreams(svc *registry.Service, upstreams []Upstream) {
	for _, u := range upstreams {
		if at := u.Listen.Addr(); !slices.Contains(n.addresses, at) {
			n.addresses = append(n.addresses, at)
		}
		port, _ := svc.Port(u.Port)
		n.ports = append(n.ports, portName(port, uint32(u.Listen.Port())))
	}
}

// addInstances adds the addresses of a service's instances, and a name for each instance. Kubernetes does the same for
// headless services.
func (v proxyView) addInstances(table map[string]nameInfo, info *nameInfo, svc *registry.Service) {
	instances := v.p.instances(v.s, svc)
	if svc.Resolution != registry.Static || instances == nil {
		return
	}
	seen := map[netip.Addr]bool{}
	streams, datagrams := instancePorts{}, instancePorts{}
	each := func(e *registry.Endpoint, ports instancePorts) {
		at, err := netip.ParseAddr(e.Address)
		if err != nil {
			return
		}
		ports.add(e)
		if seen[at] {
			return
		}
		seen[at] = true
		info.addresses = append(info.addresses, at)
		second, err := netip.ParseAddr(e.SecondAddress)
		own := []netip.Addr{at}
		if err == nil {
			own = append(own, second)
			info.addresses = append(info.addresses, second)
		}
		if svc.Kubernetes && e.Hostname != "" {
			short := e.Hostname + "." + svc.Name
			one := table[e.Hostname+"."+svc.Hostname]
			one.registry, one.shortName, one.namespace = info.registry, short, svc.Namespace
			one.addresses = append(one.addresses, own...)
			table[e.Hostname+"."+svc.Hostname] = one
		}
	}
	for _, e := range instances.Endpoints {
		each(e.Endpoint, streams)
	}
	for i := range instances.UDPEndpoints {
		each(&instances.UDPEndpoints[i], datagrams)
	}
	for _, p := range svc.Ports {
		ports := streams
		if p.Protocol == registry.UDP {
			ports = datagrams
		}
		if number := ports[p.Number]; number != 0 {
			info.ports = append(info.ports, portName(p, number))
		}
	}
}

// instancePorts maps a service's ports to the ports of its instances. The value is 0 if the ports of the instances
// differ.
type instancePorts map[uint32]uint32

func (p instancePorts) add(e *registry.Endpoint) {
	if number, known := p[e.ServicePort]; !known {
		p[e.ServicePort] = e.Port
	} else if number != e.Port {
		p[e.ServicePort] = 0
	}
}

// Field numbers of istio.networking.nds.v1.NameTable and NameInfo. The last one is an extension that agents of Istio
// ignore. It contains the ports, which SRV answers require.
const (
	namesField    = 1
	nameKey       = 1
	nameValue     = 2
	nameAddress   = 1
	nameRegistry  = 2
	nameShort     = 3
	nameNamespace = 4
	namePort      = 1001
	avgNameBytes  = 120 // estimate for allocation
)

func encodeNames(table map[string]nameInfo) []byte {
	out := make([]byte, 0, len(table)*avgNameBytes)
	for _, host := range slices.Sorted(maps.Keys(table)) {
		entry := appendText(nil, nameKey, host)
		entry = appendText(entry, nameValue, string(table[host].encode()))
		out = appendText(out, namesField, string(entry))
	}
	return out
}

func (n nameInfo) encode() []byte {
	var out []byte
	addresses := slices.Clone(n.addresses)
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, at := range addresses {
		out = appendText(out, nameAddress, at.String())
	}
	out = appendText(out, nameRegistry, n.registry)
	if n.shortName != "" {
		out = appendText(out, nameShort, n.shortName)
		out = appendText(out, nameNamespace, n.namespace)
	}
	for _, port := range n.ports {
		out = appendText(out, namePort, port)
	}
	return out
}

func appendText(out []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(out, field, protowire.BytesType), text)
}

// DescribedName is an entry of the name table, with Istio's JSON keys.
type DescribedName struct {
	IPs       []string `json:"ips,omitempty"`
	Registry  string   `json:"registry,omitempty"`
	ShortName string   `json:"shortname,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Ports     []string `json:"ports,omitempty"`
}

// DescribeNames decodes a name table that NameTable created. It returns the entries by host name.
func DescribeNames(table []byte) map[string]DescribedName {
	all := map[string]DescribedName{}
	forEachString(table, func(_ protowire.Number, entry string) {
		var host string
		var d DescribedName
		forEachString([]byte(entry), func(field protowire.Number, text string) {
			if field == nameKey {
				host = text
				return
			}
			forEachString([]byte(text), d.set)
		})
		all[host] = d
	})
	return all
}

func (d *DescribedName) set(field protowire.Number, text string) {
	switch field {
	case nameAddress:
		d.IPs = append(d.IPs, text)
	case nameRegistry:
		d.Registry = text
	case nameShort:
		d.ShortName = text
	case nameNamespace:
		d.Namespace = text
	case namePort:
		d.Ports = append(d.Ports, text)
	}
}

// forEachString calls do for each string field. It stops at the first field of another type.
func forEachString(wire []byte, do func(protowire.Number, string)) {
	for len(wire) > 0 {
		field, kind, n := protowire.ConsumeTag(wire)
		if n < 0 || kind != protowire.BytesType {
			return
		}
		text, m := protowire.ConsumeString(wire[n:])
		if m < 0 {
			return
		}
		do(field, text)
		wire = wire[n+m:]
	}
}
