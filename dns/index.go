package dns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// maxPointers limits the names in the answer to a PTR query.
const maxPointers = 8

// index is a name table indexed for queries, for one namespace and list of search domains.
type index struct {
	table    *Table
	names    map[string]*record       // fully qualified, lower case
	wildcard map[string]*record       // by what follows "*."
	reverse  map[netip.Addr][]*record // hosts with the smallest number of addresses first
	expand   string                   // the first search domain with a leading and a trailing dot; "" means none
}

// workloadDomain determines the short names that the workload may use.
type workloadDomain struct{ namespace, domain string }

// workloadDomain returns the namespace, and the domain without the namespace.
func (c Config) workloadDomain() workloadDomain {
	return workloadDomain{c.Namespace, strings.ToLower(strings.Trim(strings.TrimPrefix(c.Domain, c.Namespace+"."), "."))}
}

// newIndex adds names in sorted order, so that equal tables give equal answers. Names in the table have precedence over
// derived names.
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

// add assigns a record to a name, unless the name has one.
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

// shortForms returns the short names of a service: the names that a search domain completes, name.namespace, and
// name.namespace with the domain's first label. The service's name alone is short for services of the workload's own
// namespace only.
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

// addPointer adds a record for PTR queries.
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
	alias  string // the name without the search domain, if that was removed; the answer has a CNAME to it
	rule   string
}

const ruleName = "name"

// find looks up a name, fully qualified and in lower case. It tries the name itself, the name without the first search
// domain (which stub resolvers append first to names with few dots), and then wildcards, the most specific one first.
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

// unexpanded returns the name without the first search domain, or "" if it does not end in it.
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

// pointers returns the hosts of an address for the name of a PTR query. If several hosts have the address, it returns
// those with the smallest number of addresses: for a headless service, the single pod.
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

// parseReverseName parses a name below in-addr.arpa or ip6.arpa.
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
