package dns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// kubernetes is the name of the service registry whose services have short names.
const kubernetes = "Kubernetes"

// Table is a name table of the mesh. It must not be changed after it was passed to a Server.
type Table struct {
	// Hosts contains the entries by host name. The first label of a name may be * (wildcard).
	Hosts map[string]Entry
	// Skipped is the number of invalid or excess host names, addresses and ports that DecodeTable has skipped.
	Skipped int
}

// Entry is the entry of one host in a name table.
type Entry struct {
	IPs       []netip.Addr
	Registry  string   // the service registry, such as "Kubernetes" or "External"
	ShortName string   // name of the Kubernetes service
	Namespace string   // namespace of the service
	AltHosts  []string // alternative host names
	// Ports are the named ports for SRV queries. Istio's control plane does not send them. SRV queries for a host
	// without ports are forwarded.
	Ports []Port
}

// Port is a named port of a service.
type Port struct {
	Name     string
	Protocol string // "tcp" or "udp"
	Number   uint16
}

// record is an Entry prepared for queries.
type record struct {
	host    string // fully qualified, in lower case
	cluster bool   // the host is a Kubernetes service of the cluster
	v4, v6  []netip.Addr
	ports   []Port
}

// newRecord returns the record of an entry. It removes duplicate addresses, because an answer must not contain the same
// record twice (RFC 2181).
func newRecord(host string, e Entry) *record {
	r := &record{host: host, cluster: e.Registry == kubernetes, ports: e.Ports}
	for _, ip := range slices.Compact(slices.SortedFunc(slices.Values(e.IPs), netip.Addr.Compare)) {
		if ip = ip.Unmap(); ip.Is4() {
			r.v4 = append(r.v4, ip)
		} else if ip.IsValid() {
			r.v6 = append(r.v6, ip.WithZone(""))
		}
	}
	return r
}

func (r *record) addresses() int { return len(r.v4) + len(r.v6) }

// canonical returns the name in lower case with a trailing dot. ok is false for the root and for an invalid name.
func canonical(name string) (_ string, ok bool) {
	name = dns.Fqdn(strings.ToLower(name))
	_, ok = dns.IsDomainName(name)
	return name, ok && name != "." && len(name) <= 254
}
