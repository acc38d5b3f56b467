package dns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// maxPointers limits the number of host names per address in the response to a PTR query.
const maxPointers = 8

// index is an index of a name table by name and address, including short names. The short names depend on the
// workload's namespace and search domains.
type index struct {
	table    *Table
	names    map[string]*record       // fully qualified, lower case
	wildcard map[string]*record       // by the name without the prefix "*."
	reverse  map[netip.Addr][]*record // hosts by address; hosts with few addresses first
	expand   string                   // first search domain with a leading and a trailing dot; "" for none
}

// workloadDomain contains the workload's namespace, and its DNS domain without the namespace. They determine which
// short names resolve.
type workloadDomain struct{ namespace, domain string }

// workloadDomain returns the workload's domain. Config.Domain may begin with the namespace.
func (c Config) workloadDomain() workloadDomain {
	return workloadDomain{c.Namespace, strings.ToLower(strings.Trim(strings.TrimPrefix(c.Domain, c.Namespace+"."), "."))}
}

// newIndex returns the index of a table. It adds hosts in sorted order, so that equal tables yield equal indexes. Host
// names in the table have precedence over alternative and short names.
func newIndex(t *Table, at workloadDomain, search []string) *index {
	x := &index{
		table: t, names: make(map[string]*record, len(t.Hosts)), wildcard: make(map[string]*record),
		reverse: make(map[netip.Addr][]*record),
	}
	if len(search) > 0 {
		x.expand = "." + search[0]
	}
	hosts := slices.Sorted(maps.Keys(t.Hosts))
	records := make([]*record, len(hosts))
	for i, host := range hosts {
		name, ok := canonical(host)
		if r := newRecord(name, t.Hosts[host]); ok && r.addresses() > 0 {
			records[i] = r
			x.add(name, r)
		}
	}
	for i, host := range hosts {
		if r := records[i]; r != nil {
			x.derive(r, t.Hosts[host], at, search)
			x.addPointer(r)
		}
	}
	return x
}

// add adds a name, unless the index already contains it.
func (x *index) add(name string, r *record) {
	into := x.names
	if rest, wild := strings.CutPrefix(name, "*."); wild {
		name, into = rest, x.wildcard
	}
	if _, taken := into[name]; !taken && name != "" {
		into[name] = r
	}
}

// derive adds the alternative and short names of a host.
func (x *index) derive(r *record, e Entry, at workloadDomain, search []string) {
	others := slices.Clone(e.AltHosts)
	if e.Registry == kubernetes {
		others = append(others, shortForms(r.host, e, at, search)...)
	}
	for _, other := range others {
		if name, ok := canonical(other); ok {
			x.add(name, r)
		}
	}
}

// shortForms returns the short names of a Kubernetes service: its host without a search domain, name.namespace, and
// name.namespace with the first label of the domain, such as reviews.shop.svc. The name alone is included only for
// services of the workload's own namespace.
func shortForms(host string, e Entry, at workloadDomain, search []string) []string {
	var forms []string
	for _, domain := range search {
		short, found := strings.CutSuffix(host, "."+domain)
		if found && (strings.Contains(short, ".") || e.Namespace == at.namespace) {
			forms = append(forms, short)
		}
	}
	if e.ShortName == "" || e.Namespace == "" || at.domain == "" || !strings.HasSuffix(host, "."+at.domain+".") {
		return forms
	}
	if e.Namespace == at.namespace {
		forms = append(forms, e.ShortName)
	}
	first, _, _ := strings.Cut(at.domain, ".")
	name := e.ShortName + "." + e.Namespace
	return append(forms, name, name+"."+first)
}

// addPointer indexes a host by its addresses, for PTR queries.
func (x *index) addPointer(r *record) {
	if strings.HasPrefix(r.host, "*.") {
		return
	}
	for _, ips := range [][]netip.Addr{r.v4, r.v6} {
		for _, ip := range ips {
			all := x.reverse[ip]
			at, _ := slices.BinarySearchFunc(all, r.addresses(), func(o *record, n int) int { return o.addresses() - n })
			if all = slices.Insert(all, at, r); len(all) > maxPointers {
				all = all[:maxPointers]
			}
			x.reverse[ip] = all
		}
	}
}

// match is the result of a lookup in the table.
type match struct {
	record *record
	alias  string // the name without the search domain if find removed it, for a CNAME record; otherwise ""
	rule   string // how the name was found, for Explanation
}

const ruleName = "name"

// find looks up a name, which must be fully qualified and in lower case. It looks for the name, then for the name
// without the first search domain, then for wildcards, the most specific one first. Stub resolvers append the first
// search domain to names with few dots.
func (x *index) find(name string) (match, bool) {
	if r := x.names[name]; r != nil {
		return match{record: r, rule: ruleName}, true
	}
	bare := x.unexpanded(name)
	if r := x.names[bare]; r != nil {
		return match{record: r, alias: bare, rule: "name with the first search domain added"}, true
	}
	if r := x.covering(name); r != nil {
		return match{record: r, rule: "wildcard"}, true
	}
	if r := x.covering(bare); r != nil {
		return match{record: r, alias: bare, rule: "wildcard, with the first search domain added"}, true
	}
	return match{}, false
}

// unexpanded returns the name without the first search domain, or "" if the name does not end in this domain.
func (x *index) unexpanded(name string) string {
	if x.expand == "" {
		return ""
	}
	bare, found := strings.CutSuffix(name, x.expand)
	if !found || bare == "" {
		return ""
	}
	return bare + "."
}

// covering returns the record of the most specific wildcard that matches the name, or nil.
func (x *index) covering(name string) *record {
	if len(x.wildcard) == 0 || name == "" {
		return nil
	}
	for off, end := dns.NextLabel(name, 0); !end; off, end = dns.NextLabel(name, off) {
		if r := x.wildcard[name[off:]]; r != nil {
			return r
		}
	}
	return nil
}

// pointers returns the host names for a PTR query. If several hosts have the address, it returns those with the fewest
// addresses. For an address of a headless service, that is the host of the single pod.
func (x *index) pointers(name string) []string {
	ip, ok := parseReverseName(name)
	if !ok {
		return nil
	}
	var hosts []string
	for _, r := range x.reverse[ip] {
		if r.addresses() == x.reverse[ip][0].addresses() {
			hosts = append(hosts, r.host)
		}
	}
	return hosts
}

// parseReverseName returns the address in a name below in-addr.arpa or ip6.arpa.
func parseReverseName(name string) (netip.Addr, bool) {
	v4, is4 := strings.CutSuffix(name, ".in-addr.arpa.")
	v6, is6 := strings.CutSuffix(name, ".ip6.arpa.")
	var text string
	switch {
	case is4:
		parts := strings.Split(v4, ".")
		slices.Reverse(parts)
		text = strings.Join(parts, ".")
	case is6 && len(v6) == 63:
		for i := 62; i >= 0; i -= 2 {
			text += string(v6[i])
			if i%8 == 0 && i > 0 {
				text += ":"
			}
		}
	}
	ip, err := netip.ParseAddr(text)
	return ip, err == nil
}
