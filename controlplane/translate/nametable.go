package translate

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// nameTableName is what the one resource is called; Istio's control plane gives it no name.
const nameTableName = "names"

// NameTable are the names of the mesh with their addresses, of which a proxy's agent answers DNS questions. What they are
// depends on how the workload's traffic gets to its sidecar: where connections are redirected, a service's own address
// will do, and where they are not, only those at which something listens.
func NameTable(s *snapshot.Snapshot, p *Proxy) (*xds.Resource, error) {
	v := newView(s, p)
	if len(p.Upstreams) > 0 {
		return v.nameTable()
	}
	return s.Own.Get(nameTableKey{v.scope, p.Interception, p.takesVirtual()}, v.nameTable)
}

// nameTableKey is all that a name table depends on, within one snapshot.
type nameTableKey struct {
	scope        *snapshot.Scope
	interception Interception
	virtual      bool
}

// takesVirtual says whether connections of the proxy's workload to an address that stands for a service alone, and is nobody's,
// come to the proxy.
func (p *Proxy) takesVirtual() bool { return p.captured() && !p.Proxyless }

// ownAddresses are those of a service by which the proxy's workload reaches it.
func (p *Proxy) ownAddresses(svc *registry.Service) []netip.Addr {
	if svc.Virtual.IsValid() && !p.takesVirtual() {
		return nil
	}
	return svc.Addresses
}

// nameInfo is what the table says of a host.
type nameInfo struct {
	addresses            []netip.Addr
	registry             string
	shortName, namespace string
	ports                []string // "_http._tcp 80"
}

func (v view) nameTable() (*xds.Resource, error) {
	table := make(map[string]nameInfo, len(v.scope.Services))
	for _, svc := range v.scope.Services {
		v.addNames(table, svc)
	}
	return xds.NewRawResource(nameTableName, xds.NameTableType, encodeNames(table)), nil
}

// addNames leaves out services that have no address here, whose names others resolve.
func (v view) addNames(table map[string]nameInfo, svc *registry.Service) {
	info := nameInfo{registry: "External"}
	if svc.Kubernetes {
		info.registry = "Kubernetes"
	}
	own := v.p.ownAddresses(svc)
	switch upstreams := v.upstreamsOf(svc); {
	case len(upstreams) > 0:
		info.listeners(svc, upstreams)
	case len(own) > 0 && v.p.Interception != None:
		info.addresses, info.ports = own, ownPorts(svc)
	default:
		v.addInstances(table, &info, svc)
	}
	if len(info.addresses) == 0 { // such as one that is served nowhere yet
		info.addresses, info.ports = own, ownPorts(svc)
	}
	if len(info.addresses) == 0 {
		return
	}
	for known := range v.scope.Names(svc) {
		if known != svc && v.scope.Service(known.Hostname) != nil {
			continue // it is a ServiceEntry's host
		}
		if info.shortName, info.namespace = "", ""; known.Kubernetes {
			info.registry, info.shortName, info.namespace = "Kubernetes", known.Name, known.Namespace
		}
		table[known.Hostname] = info
	}
}

func ownPorts(svc *registry.Service) []string {
	var ports []string
	for _, p := range svc.Ports {
		ports = append(ports, portName(p, p.Number))
	}
	return ports
}

// portName is a port as SRV questions are asked.
func portName(p registry.Port, number uint32) string {
	transport := "_tcp"
	if p.Protocol == registry.UDP {
		transport = "_udp"
	}
	return "_" + p.Name + "." + transport + " " + strconv.FormatUint(uint64(number), 10)
}

// upstreamsOf are the listeners that the sidecar has for the service.
func (v view) upstreamsOf(svc *registry.Service) []Upstream {
	var out []Upstream
	for _, u := range v.p.Upstreams {
		if _, has := svc.Port(u.Port); has && v.scope.Resolve(u.Host, v.p.Namespace) == svc {
			out = append(out, u)
		}
	}
	return out
}

func (n *nameInfo) listeners(svc *registry.Service, upstreams []Upstream) {
	for _, u := range upstreams {
		if at := u.Listen.Addr(); !slices.Contains(n.addresses, at) {
			n.addresses = append(n.addresses, at)
		}
		port, _ := svc.Port(u.Port)
		n.ports = append(n.ports, portName(port, uint32(u.Listen.Port())))
	}
}

// addInstances has a service stand for the places where it is served, and names each of these too, as Kubernetes does for
// headless services.
func (v view) addInstances(table map[string]nameInfo, info *nameInfo, svc *registry.Service) {
	instances := v.s.Instances(svc)
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
		if svc.Kubernetes && e.Workload != "" && !strings.Contains(e.Workload, ".") {
			short := e.Workload + "." + svc.Name
			one := table[e.Workload+"."+svc.Hostname]
			one.registry, one.shortName, one.namespace = info.registry, short, svc.Namespace
			one.addresses = append(one.addresses, at)
			table[e.Workload+"."+svc.Hostname] = one
		}
	}
	for _, e := range instances.Endpoints {
		each(e.Endpoint, streams)
	}
	for i := range instances.Datagrams {
		each(&instances.Datagrams[i], datagrams)
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

// instancePorts are the numbers at a service's instances of the service's ports; 0 where instances differ.
type instancePorts map[uint32]uint32

func (p instancePorts) add(e *registry.Endpoint) {
	if number, known := p[e.ServicePort]; !known {
		p[e.ServicePort] = e.Port
	} else if number != e.Port {
		p[e.ServicePort] = 0
	}
}

// Fields of istio.networking.nds.v1.NameTable and NameInfo. The last one is our own, and passed over by others: SRV
// questions cannot be answered without ports.
const (
	namesField     = 1
	nameKey        = 1
	nameValue      = 2
	nameAddress    = 1
	nameRegistry   = 2
	nameShort      = 3
	nameNamespace  = 4
	namePort       = 1001
	bytesOfOneName = 120 // or so
)

func encodeNames(table map[string]nameInfo) []byte {
	out := make([]byte, 0, len(table)*bytesOfOneName)
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

// DescribedName is what a name table says of a host, with the keys of Istio's.
type DescribedName struct {
	IPs       []string `json:"ips,omitempty"`
	Registry  string   `json:"registry,omitempty"`
	ShortName string   `json:"shortname,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Ports     []string `json:"ports,omitempty"`
}

// DescribeNames reads a name table that was made here, by host name.
func DescribeNames(table []byte) map[string]DescribedName {
	all := map[string]DescribedName{}
	eachText(table, func(_ protowire.Number, entry string) {
		var host string
		var d DescribedName
		eachText([]byte(entry), func(field protowire.Number, text string) {
			if field == nameKey {
				host = text
				return
			}
			eachText([]byte(text), d.set)
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

// eachText ends early with what is no message of texts.
func eachText(wire []byte, do func(protowire.Number, string)) {
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
