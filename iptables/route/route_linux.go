package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

// Routes manages the policy routing of one namespace. It is not safe for concurrent use.
type Routes struct {
	cfg  Config
	turn *namespace.Lock // lock of the caller; nil if each call enters the namespace itself
}

// New returns the Routes of a namespace.
func New(cfg Config) *Routes { return &Routes{cfg: cfg} }

// WithLock returns a Routes that uses the namespace lock t, which the caller holds.
func (r *Routes) WithLock(t *namespace.Lock) *Routes { return &Routes{cfg: r.cfg, turn: t} }

// loopback is the index of lo, the first interface of every namespace.
const loopback = 1

// session is a netlink connection for rules, routes and addresses. Rare requests use the netlink library. Its
// connection is opened when it is first used.
type session struct {
	*nlsocket.Socket
	origin  *Routes
	library *netlink.Handle
	closed  bool
}

func (r *Routes) open() (*session, error) {
	s := &session{origin: r}
	var err error
	if r.turn != nil {
		s.Socket, err = r.turn.Socket(unix.NETLINK_ROUTE)
	} else {
		err = namespace.Do(r.cfg.NetNS, func() (err error) {
			s.Socket, err = nlsocket.Dial(unix.NETLINK_ROUTE, time.Time{})
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for routing: %w", err)
	}
	return s, nil
}

func (s *session) close() {
	s.closed = true
	if s.library != nil {
		s.library.Close()
	}
	if s.origin.turn == nil {
		_ = s.Close()
	}
}

// handle returns the netlink library's connection.
func (s *session) handle() (_ *netlink.Handle, err error) {
	if s.library != nil {
		return s.library, nil
	}
	if ns := s.origin.cfg.NetNS; ns > 0 {
		s.library, err = netlink.NewHandleAt(netns.NsHandle(ns), unix.NETLINK_ROUTE)
	} else {
		s.library, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for routing: %w", err)
	}
	return s.library, nil
}

// family is an address family, with the number that the kernel uses for it.
type family struct {
	name   string
	number int
	all    *net.IPNet
}

func families(f iptables.Families) []family {
	var out []family
	if f&iptables.IPv4 != 0 {
		out = append(out, family{"IPv4", unix.AF_INET, &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}})
	}
	if f&iptables.IPv6 != 0 {
		out = append(out, family{"IPv6", unix.AF_INET6, &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}})
	}
	return out
}

// steeredFamilies returns the families that need a policy rule and a route.
func steeredFamilies(want *iptables.Routing, of iptables.Families) []family {
	if want.Mark == 0 {
		return nil
	}
	return families(of)
}

// Add adds the rules, routes and addresses of want that do not exist, for the address families in of. If want is nil,
// it adds nothing.
func (r *Routes) Add(want *iptables.Routing, of iptables.Families) (Undo, error) {
	if want == nil || r.cfg.Disabled {
		return run(nil, nil)
	}
	k, err := r.open()
	if err != nil {
		return nil, err
	}
	defer k.close()
	var changes []change
	for _, f := range steeredFamilies(want, of) {
		changes = append(changes, k.missingRouting(want, f)...)
	}
	return r.run(append(changes, k.missingAddresses(want.LoopbackAddresses, of)...))
}

// Prune removes our rules, routes and addresses except those that want requires for the address families in of. If
// want is nil, it removes all of them.
func (r *Routes) Prune(want *iptables.Routing, of iptables.Families) (Undo, error) {
	if r.cfg.Disabled {
		return run(nil, nil)
	}
	k, err := r.open()
	if err != nil {
		return nil, err
	}
	defer k.close()
	ours, err := k.leftOver(want == nil)
	if err != nil {
		return nil, err
	}
	if want == nil {
		want, of = &iptables.Routing{}, 0
	}
	var changes []change
	var all []family
	if !isWanted(ours, want, of) {
		all = families(iptables.BothFamilies)
	}
	for _, f := range all {
		keep := len(steeredFamilies(want, of&familyBit(f))) > 0
		more, err := k.surplusRouting(want, f, keep)
		if err != nil {
			return nil, err
		}
		changes = append(changes, more...)
	}
	more, err := k.surplusAddresses(wantedAddresses(want.LoopbackAddresses, of))
	if err != nil {
		return nil, err
	}
	return r.run(append(changes, more...))
}

// run makes the changes. The undo function that it returns enters the namespace again.
func (r *Routes) run(changes []change) (Undo, error) {
	return run(changes, r.cfg.Inject)
}

func familyBit(f family) iptables.Families {
	if f.number == unix.AF_INET {
		return iptables.IPv4
	}
	return iptables.IPv6
}

// withConnection calls f with the session. If the session is closed, which is the case during an undo, it opens a new
// one.
func (k *session) withConnection(f func(*session) error) error {
	if !k.closed {
		return f(k)
	}
	fresh, err := k.origin.open()
	if err != nil {
		return err
	}
	defer fresh.close()
	return f(fresh)
}

// withLibrary adapts a function that uses the netlink library's connection.
func withLibrary(f func(*netlink.Handle) error) func(*session) error {
	return func(k *session) error {
		h, err := k.handle()
		if err != nil {
			return err
		}
		return f(h)
	}
}

// toggle returns a change that adds an object. Its undo function deletes the object.
func (k *session) toggle(what string, add, del func(*session) error) change {
	return change{"add " + what, func() error { return k.withConnection(add) }, func() error { return k.withConnection(del) }}
}

// reverse returns the reverse change. Its undo function makes the change c again.
func (c change) reverse(what string) change {
	return change{"remove " + what, c.undo, c.do}
}

func policyRule(want *iptables.Routing, f family) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = f.number, want.Priority, want.Table
	rule.Mark, rule.Protocol = want.Mark, Protocol
	return rule
}

func (k *session) ruleChange(rule *netlink.Rule, name string) (string, change) {
	what := fmt.Sprintf("the %s rule %d: fwmark %#x lookup %d", name, rule.Priority, rule.Mark, rule.Table)
	return what, k.toggle(what,
		withLibrary(func(h *netlink.Handle) error { return h.RuleAdd(rule) }),
		withLibrary(func(h *netlink.Handle) error { return h.RuleDel(rule) }))
}

func (k *session) localRoute(table int, f family) *netlink.Route {
	return &netlink.Route{LinkIndex: loopback, Dst: f.all, Table: table, Type: unix.RTN_LOCAL,
		Scope: netlink.SCOPE_HOST, Protocol: Protocol, Family: f.number}
}

func (k *session) routeChange(route *netlink.Route, name string) (string, change) {
	what := fmt.Sprintf("the %s route: local default dev lo table %d", name, route.Table)
	return what, k.toggle(what,
		withLibrary(func(h *netlink.Handle) error { return explainRoute(h.RouteAdd(route), route.Table) }),
		withLibrary(func(h *netlink.Handle) error { return h.RouteDel(route) }))
}

func explainRoute(err error, table int) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: table %d already has a default route of another program; use a free table (--istio-inbound-tproxy-route-table)", err, table)
	case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENETUNREACH):
		return fmt.Errorf("%w: the interface lo is down in this network namespace; set it up (ip link set lo up)", err)
	case errors.Is(err, unix.EACCES): // a missing capability would cause EPERM
		return fmt.Errorf("%w: %s", err, disabledIPv6)
	}
	return err
}

// surplusRouting returns the changes that remove our routes and rules of the family f. If keep is set, the wanted
// route and rule remain. Routes are first, as leftOver requires.
func (k *session) surplusRouting(want *iptables.Routing, f family, keep bool) ([]change, error) {
	rules, err := k.rules(f)
	if err != nil {
		return nil, err
	}
	routes, err := k.routes(unix.RT_TABLE_UNSPEC, f)
	if err != nil {
		return nil, err
	}
	var out []change
	for _, r := range routes {
		if r.Protocol == Protocol && !(keep && r.Table == want.Table && isLocalDefault(r)) {
			what, c := k.routeChange(&r, f.name)
			out = append(out, c.reverse(what))
		}
	}
	kept := false
	for _, r := range rules {
		if r.Protocol != Protocol {
			continue
		}
		if keep && !kept && matches(r, want) {
			kept = true
			continue
		}
		what, c := k.ruleChange(&r, f.name)
		out = append(out, c.reverse(what))
	}
	return out, nil
}

func matches(r netlink.Rule, want *iptables.Routing) bool {
	return r.Priority == want.Priority && r.Table == want.Table && r.Mark == want.Mark && selectsMarkAlone(r)
}

// selectsMarkAlone reports whether the rule's only condition is a mark without a mask.
func selectsMarkAlone(r netlink.Rule) bool {
	return (r.Mask == nil || *r.Mask == ^uint32(0)) && r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" &&
		!r.Invert && r.Tos == 0 && r.IPProto == 0 && r.Sport == nil && r.Dport == nil && r.UIDRange == nil
}

func hasRoute(routes []netlink.Route) bool {
	for _, r := range routes {
		if isLocalDefault(r) {
			return true
		}
	}
	return false
}

func isLocalDefault(r netlink.Route) bool {
	if r.Type != unix.RTN_LOCAL {
		return false
	}
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// retryDump repeats a dump if a concurrent change interrupted it.
func retryDump[T any](dump func() (T, error)) (T, error) {
	for range 10 {
		out, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, nlsocket.ErrInterrupted) {
			return out, err
		}
	}
	return dump()
}

func (k *session) rules(f family) ([]netlink.Rule, error) {
	h, err := k.handle()
	if err != nil {
		return nil, err
	}
	rules, err := retryDump(func() ([]netlink.Rule, error) { return h.RuleList(f.number) })
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the kernel does not support IPv6 or policy routing; an attempt to add a rule reports that
	}
	if err != nil {
		return nil, fmt.Errorf("reading the %s policy rules: %w", f.name, err)
	}
	return rules, nil
}

// routes returns the routes of a table, or of all tables if table is RT_TABLE_UNSPEC.
func (k *session) routes(table int, f family) ([]netlink.Route, error) {
	h, err := k.handle()
	if err != nil {
		return nil, err
	}
	routes, err := retryDump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(f.number, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the %s routes: %w", f.name, err)
	}
	return routes, nil
}

// SetRouting reads our routing from the kernel, and sets in.Rules.Routing to it. If our routing is incomplete, differs
// between families, or exists without rules, SetRouting adds a text to in.Strange.
func (r *Routes) SetRouting(in *iptables.Installed) error {
	if r.cfg.Disabled {
		return nil
	}
	k, err := r.open()
	if err != nil {
		return err
	}
	defer k.close()
	of := iptables.BothFamilies
	if in.Rules != nil {
		of = in.Rules.Families
	}
	routing, strange, err := k.readAll(of, in.Rules != nil)
	if err != nil {
		return err
	}
	in.Strange = append(in.Strange, strange...)
	if in.Rules != nil {
		in.Rules.Routing = routing
	} else if routing != nil {
		in.Strange = append(in.Strange, fmt.Sprintf("routing without redirection rules: %+v", *routing))
	}
	return nil
}

// readAll reads our routing of these families. If rules is set, it also accepts an address PassthroughIPv6 that another
// program added.
func (k *session) readAll(of iptables.Families, rules bool) (*iptables.Routing, []string, error) {
	var found []*iptables.Routing
	var words []string
	ours, err := k.ours(unix.RTM_GETRULE)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range families(of) {
		if len(ours) == 0 {
			found = append(found, nil)
			continue
		}
		routing, strange, err := k.read(f)
		if err != nil {
			return nil, nil, err
		}
		found, words = append(found, routing), append(words, strange...)
	}
	onLo, err := k.addresses()
	if err != nil {
		return nil, nil, err
	}
	addresses, _ := oursOf(onLo)
	isPassthrough := func(a address) bool { return a.prefix == iptables.PassthroughIPv6 && a.protocol != Protocol }
	if rules && of&iptables.IPv6 != 0 && slices.ContainsFunc(onLo, isPassthrough) {
		addresses = append(addresses, iptables.PassthroughIPv6)
	}
	if len(words) == 0 && anyOf(found) && commonRouting(found) == nil {
		words = append(words, "the policy rules and routes of IPv4 and IPv6 differ")
	}
	routing := commonRouting(found)
	if routing == nil && len(addresses) > 0 {
		routing = &iptables.Routing{}
	}
	if routing != nil {
		routing.LoopbackAddresses = addresses
	}
	return routing, words, nil
}

func anyOf(list []*iptables.Routing) bool {
	for _, r := range list {
		if r != nil {
			return true
		}
	}
	return false
}

// commonRouting returns the routing if it is the same for all families. Otherwise it returns nil.
func commonRouting(list []*iptables.Routing) *iptables.Routing {
	for _, r := range list {
		if r == nil || list[0] == nil || r.Mark != list[0].Mark || r.Table != list[0].Table || r.Priority != list[0].Priority {
			return nil
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// read returns our rule of a family with its route. It also returns texts that describe faults of the rule and the
// route.
func (k *session) read(f family) (*iptables.Routing, []string, error) {
	rules, err := k.rules(f)
	if err != nil {
		return nil, nil, err
	}
	var out *iptables.Routing
	var words []string
	for _, r := range rules {
		if r.Protocol != Protocol {
			continue
		}
		found := &iptables.Routing{Mark: r.Mark, Table: r.Table, Priority: r.Priority}
		routes, err := k.routes(r.Table, f)
		switch {
		case err != nil:
			return nil, nil, err
		case !selectsMarkAlone(r) || out != nil:
			words = append(words, fmt.Sprintf("%s: %s", f.name, r.String()))
		case !hasRoute(routes):
			words = append(words, fmt.Sprintf("%s: table %d has no local default route, but rule %d refers to it", f.name, r.Table, r.Priority))
		default:
			out = found
		}
	}
	if out == nil {
		return nil, words, nil
	}
	astray, err := k.misroutedMarks(out, f)
	return out, append(words, astray...), err
}

func wantedAddresses(list []netip.Prefix, of iptables.Families) map[netip.Prefix]bool {
	out := map[netip.Prefix]bool{}
	for _, p := range list {
		if p.Addr().Is4() && of&iptables.IPv4 != 0 || p.Addr().Is6() && of&iptables.IPv6 != 0 {
			out[p] = true
		}
	}
	return out
}
