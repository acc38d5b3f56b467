package dns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Explanation is the result of a lookup, and how the server found it.
type Explanation struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Rcode   string   `json:"rcode"`
	Answers []string `json:"answers"`
	// Source is "mesh" (name table), "cache", "resolver", "stale" (expired answer in the cache) or "failed".
	Source string `json:"source"`
	Steps  []Step `json:"steps"`
}

// Step is the query for one name. A stub resolver may query several names, because it appends search domains.
type Step struct {
	Query  string `json:"asked"`
	Rcode  string `json:"rcode"`
	Source string `json:"source"`
	Why    string `json:"why"`
}

// Lookup resolves a name in the same way as a stub resolver that uses this server and the same resolv.conf. It explains
// each step. Search domains are not appended to a name that ends with a dot. rrtype is a record type such as A or AAAA.
func (s *Server) Lookup(ctx context.Context, name, rrtype string) (Explanation, error) {
	qtype, ok := dns.StringToType[strings.ToUpper(rrtype)]
	if !ok || qtype == dns.TypeAXFR || qtype == dns.TypeIXFR {
		return Explanation{}, fmt.Errorf("%q is not a supported DNS record type: use for example A, AAAA, PTR or SRV", rrtype)
	}
	if _, ok := canonical(name); !ok {
		return Explanation{}, fmt.Errorf("%q is not a valid DNS name", name)
	}
	s.conf.check(s.config.Now())
	e := Explanation{Name: name, Type: dns.TypeToString[qtype]}
	var bare *Explanation
	for _, candidate := range s.candidates(name) {
		before := len(e.Steps)
		e.try(ctx, s, candidate, qtype)
		if len(e.Answers) > 0 {
			return e, nil
		}
		// As in a stub resolver, the result is the first name that exists, even without records of this type, unless a
		// later candidate has records.
		if step := e.Steps[before]; bare == nil && step.Rcode == dns.RcodeToString[dns.RcodeSuccess] {
			found := e
			bare = &found
		}
	}
	if bare != nil {
		bare.Steps = e.Steps
		return *bare, nil
	}
	return e, nil
}

// candidates returns the names that a stub resolver queries, in order. The order depends on the option ndots.
func (s *Server) candidates(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	s.mu.Lock()
	search, ndots := s.search, s.ndots
	s.mu.Unlock()
	var expanded []string
	for _, domain := range search {
		if full, ok := canonical(name + "." + domain); ok {
			expanded = append(expanded, full)
		}
	}
	if strings.Count(name, ".") >= ndots {
		return append([]string{name + "."}, expanded...)
	}
	return append(expanded, name+".")
}

// try resolves one name and appends the step.
func (e *Explanation) try(ctx context.Context, s *Server, name string, qtype uint16) {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	q := &query{msg: m, id: m.Id, recurse: true, tcp: true, size: dns.MaxMsgSize,
		key: question{name: strings.ToLower(name), qtype: qtype, class: dns.ClassINET}}
	wire, source, why := s.explain(ctx, q)
	var got dns.Msg
	if err := got.Unpack(wire); err != nil {
		got.Rcode = dns.RcodeServerFailure
	}
	e.Rcode, e.Source, e.Answers = dns.RcodeToString[got.Rcode], source, nil
	for _, rr := range got.Answer {
		e.Answers = append(e.Answers, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	e.Steps = append(e.Steps, Step{Query: name, Rcode: e.Rcode, Source: source, Why: why})
}

// explain responds to a query in the same way as answerLocally and forwarded. It also returns the source of the answer
// and an explanation.
func (s *Server) explain(ctx context.Context, q *query) (wire []byte, source, why string) {
	x := s.index.Load()
	if x == nil && !s.config.ForwardWithoutTable {
		return q.fail(dns.RcodeServerFailure), sourceFailed, "the control plane has not sent a name table yet"
	}
	if x != nil {
		if m, ok := x.meshAnswer(q, s.config.TTL); ok {
			return q.pack(m), sourceMesh, x.explainMatch(q.key)
		}
	}
	a, source, err := s.forward.resolve(ctx, q.key)
	if err != nil {
		return s.unanswered(q), source, strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return s.finish(q, a), source, s.describeSource(a, source)
}

// explainMatch explains an answer from the name table.
func (x *index) explainMatch(key question) string {
	if key.qtype == dns.TypePTR {
		return "the address belongs to a host of the mesh"
	}
	found, ok := x.find(key.name)
	if !ok {
		return "the name specifies a port of a host of the mesh"
	}
	e := x.table.Hosts[strings.TrimSuffix(found.record.host, ".")]
	rule := found.rule
	if rule == ruleName && found.record.host != key.name {
		rule = "a short name or an alternative name of the host"
	}
	why := fmt.Sprintf("host %s of the mesh, found by %s", strings.TrimSuffix(found.record.host, "."), rule)
	if e.Registry != "" {
		why += fmt.Sprintf(" (registry %s, namespace %q)", e.Registry, e.Namespace)
	}
	if key.qtype == dns.TypeA && len(found.record.v4) == 0 || key.qtype == dns.TypeAAAA && len(found.record.v6) == 0 {
		why += "; the host does not have an address of this family"
	}
	return why
}

// describeSource explains an answer from the cache or a resolver.
func (s *Server) describeSource(a *answer, source string) string {
	age := a.age(s.config.Now()).Round(time.Second)
	switch source {
	case sourceCache:
		return fmt.Sprintf("not a mesh name; cached answer of resolver %s, received %s ago", a.server, age)
	case sourceStale:
		return fmt.Sprintf("not a mesh name; the resolvers do not respond; expired answer of resolver %s, received %s ago", a.server, age)
	}
	return "not a mesh name; answer of resolver " + a.server
}

// ReverseName returns the name of a PTR query if name is an IP address and *rrtype is "" or PTR. It then sets *rrtype
// to PTR. Otherwise it returns name unchanged.
func ReverseName(name string, rrtype *string) string {
	ip, err := netip.ParseAddr(name)
	if err != nil || *rrtype != "" && !strings.EqualFold(*rrtype, "PTR") {
		return name
	}
	reverse, err := dns.ReverseAddr(ip.Unmap().String())
	if err != nil {
		return name
	}
	*rrtype = "PTR"
	return reverse
}
