package dns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// mostPointers bounds the names that a PTR question is answered with.
const mostPointers = 8

// index is a table made ready for questions, for one namespace and list of search domains.
type index struct {
	table    *Table
	names    map[string]*record       // fully qualified, lower case
	wildcard map[string]*record       // by what follows "*."
	reverse  map[netip.Addr][]*record // the fewest addresses first
	expand   string                   // the first search domain, with a dot before and after; "" means none
}

// home is where the workload is, on which the short forms depend that it may use.
type home struct{ namespace, domain string }

// home leaves the namespace out of the domain.
func (c Config) home() home {
	return home{c.Namespace, strings.ToLower(strings.Trim(strings.TrimPrefix(c.Domain, c.Namespace+"."), "."))}
}

// newIndex goes by the names in order, so that the same table always answers alike. A name that the table has itself goes
// before one that is derived.
func newIndex(t *Table, at home, search []string) *index {
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
			x.point(r)
		}
	}
	return x
}

// add gives a name its record, unless it has one.
func (x *index) add(name string, r *record) {
	into := x.names
	if rest, wild := strings.CutPrefix(name, "*."); wild {
		name, into = rest, x.wildcard
	}
	if _, taken := into[name]; !taken && name != "" {
		into[name] = r
	}
}

// derive adds the other names of a host.
func (x *index) derive(r *record, e Entry, at home, search []string) {
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

// shortForms are what a pod may write for a service: what one of its search domains completes, name.namespace, and that
// with the first label of the domain. The name alone means a service of the pod's own namespace only.
func shortForms(host string, e Entry, at home, search []string) []string {
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

// point enters the record for PTR questions.
func (x *index) point(r *record) {
	if strings.HasPrefix(r.host, "*.") {
		return
	}
	for _, ips := range [][]netip.Addr{r.v4, r.v6} {
		for _, ip := range ips {
			all := x.reverse[ip]
			at, _ := slices.BinarySearchFunc(all, r.addresses(), func(o *record, n int) int { return o.addresses() - n })
			if all = slices.Insert(all, at, r); len(all) > mostPointers {
				all = all[:mostPointers]
			}
			x.reverse[ip] = all
		}
	}
}

// match is why a name is one of the mesh.
type match struct {
	record *record
	alias  string // the name without the search domain, when that was taken off; the answer goes there by a CNAME
	rule   string
}

const ruleName = "name"

// find looks for a name, fully qualified and in lower case: as it stands, without the first search domain (which stub
// resolvers add to names of few dots before they try them as they are), then by wildcards, the closest first.
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

// unexpanded is the name without the first search domain, or "".
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

// pointers are the hosts of an address, given as the name that a PTR question asks for. Those that share it with the
// fewest others are meant: of a headless service, the single pod.
func (x *index) pointers(name string) []string {
	ip, ok := reversed(name)
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

// reversed reads an address from a name below in-addr.arpa or ip6.arpa.
func reversed(name string) (netip.Addr, bool) {
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
