package dns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// kubernetes is the registry whose services are also known by short names.
const kubernetes = "Kubernetes"

// Table are the names of the mesh. It is not to be changed once it is given to a Server.
type Table struct {
	// Hosts are entries by host name, in which a first label may be *.
	Hosts map[string]Entry
	// Skipped counts what was left out as it came in: hosts that are no names, and addresses that are none.
	Skipped int
}

// Entry is what a host name stands for.
type Entry struct {
	IPs       []netip.Addr
	Registry  string // where the service was found, such as "Kubernetes" or "External"
	ShortName string
	Namespace string
	AltHosts  []string
	// Ports answer SRV questions. Istio's control plane does not send them; without any, those questions are forwarded.
	Ports []Port
}

// Port is a named port of a service.
type Port struct {
	Name     string
	Protocol string // "tcp" or "udp"
	Number   uint16
}

// record is an entry as questions need it.
type record struct {
	host    string // fully qualified, in lower case
	cluster bool   // it is a service of the cluster
	v4, v6  []netip.Addr
	ports   []Port
}

// newRecord leaves out what is there twice: no record may be twice in an answer (RFC 2181).
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

// canonical is the name in lower case with its last dot; false means that it is none.
func canonical(name string) (string, bool) {
	name = dns.Fqdn(strings.ToLower(name))
	_, ok := dns.IsDomainName(name)
	return name, ok && name != "." && len(name) <= 254
}
