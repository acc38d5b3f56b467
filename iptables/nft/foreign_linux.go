package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Foreign returns the base chains of other programs, including iptables-nft, that packets of the namespace traverse. It
// also returns the destinations that their rules match. Only test packets to these destinations show the effect of such
// rules.
func (b *Backend) Foreign(ctx context.Context) (all []iptables.ForeignChain, err error) {
	err = b.withLock(ctx, func(_ *Backend, c *conn) error {
		for range maxAttempts {
			if all, err = c.foreign(); !errors.Is(err, errInterrupted) {
				return err
			}
		}
		return err
	})
	return all, err
}

// owner identifies a table, or a chain of a table.
type owner struct {
	family       byte
	table, chain string
}

func (c *conn) foreign() ([]iptables.ForeignChain, error) {
	chains, err := c.request(message{kind: unix.NFT_MSG_GETCHAIN, flags: unix.NLM_F_DUMP, family: anyFamily})
	if err != nil {
		return nil, err
	}
	rules, err := c.request(message{kind: unix.NFT_MSG_GETRULE, flags: unix.NLM_F_DUMP, family: anyFamily})
	if err != nil {
		return nil, err
	}
	named := map[owner][]iptables.NamedDestination{} // per table, because base chains jump to other chains of the table
	count := map[owner]int{}
	for _, r := range rules {
		a := bodyOf(r)
		at := owner{family: familyByte(r.Data), table: a.text(unix.NFTA_RULE_TABLE), chain: a.text(unix.NFTA_RULE_CHAIN)}
		rule := kernelRuleOf(a)
		if !isForeignTable(at) || isOurIPTablesRule(at.chain, rule) {
			continue
		}
		count[at]++
		table := owner{family: at.family, table: at.table}
		named[table] = append(named[table], c.namedDestinations(at, rule)...)
	}
	var all []iptables.ForeignChain
	for _, r := range chains {
		a := bodyOf(r)
		at := owner{family: familyByte(r.Data), table: a.text(unix.NFTA_CHAIN_TABLE), chain: a.text(unix.NFTA_CHAIN_NAME)}
		hook := a.get(unix.NFTA_CHAIN_HOOK)
		policy, _ := a.number(unix.NFTA_CHAIN_POLICY)
		if hook == nil || !isForeignTable(at) || count[at] == 0 && policy == nfAccept {
			continue
		}
		all = append(all, foreignChain(at, hook, a, count[at], named[owner{family: at.family, table: at.table}]))
	}
	return all, nil
}

func foreignChain(at owner, hook []byte, a attributes, rules int, named []iptables.NamedDestination) iptables.ForeignChain {
	h := parse(hook)
	number, _ := h.number(unix.NFTA_HOOK_HOOKNUM)
	priority, _ := h.number(unix.NFTA_HOOK_PRIORITY)
	policy, _ := a.number(unix.NFTA_CHAIN_POLICY)
	f := iptables.ForeignChain{Table: map[byte]string{unix.NFPROTO_IPV4: "ip ", unix.NFPROTO_IPV6: "ip6 ", unix.NFPROTO_INET: "inet "}[at.family] + at.table,
		Name: at.chain, Priority: int(int32(priority)), Rules: rules, Drops: policy != nfAccept, NamedDestinations: named}
	if names := []string{"prerouting", "input", "forward", "output", "postrouting"}; int(number) < len(names) {
		f.Hook = names[number]
	}
	return f
}

func familyByte(data []byte) byte {
	if len(data) == 0 {
		return 0
	}
	return data[0]
}

// isForeignTable reports whether the table is not ours, and is of a family that can affect connections.
func isForeignTable(at owner) bool {
	return slices.Contains([]byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_INET}, at.family) &&
		(at.family != unix.NFPROTO_INET || at.table != Table && !strings.HasPrefix(at.table, Table+"_"))
}

// isOurIPTablesRule reports whether a rule of iptables-nft is ours: it is in one of our chains, or jumps to one.
func isOurIPTablesRule(chain string, rule kernelRule) bool {
	ours := func(name string) bool {
		return strings.HasPrefix(name, "PILOTFISH_") || strings.HasPrefix(name, "ISTIO_")
	}
	return ours(chain) || slices.ContainsFunc(rule.exprs, func(e kernelExpr) bool {
		v, ok := verdictOf(e)
		return ok && ours(v.Chain)
	})
}

// namedDestinations returns the destinations that a rule matches: each combination of its ports and addresses. If the rule
// has no ports or no addresses, that field is zero.
func (c *conn) namedDestinations(at owner, rule kernelRule) []iptables.NamedDestination {
	var ports []uint16
	var addresses []netip.Addr
	var loaded expr.Payload
	for _, e := range rule.exprs {
		switch e.name {
		case "payload":
			loaded = expr.Payload{}
			_ = expr.Unmarshal(at.family, e.data, &loaded)
		case "cmp", "range", "lookup":
			for _, v := range c.comparedValues(at, e) {
				if isPort(loaded) && len(v) == 2 {
					ports = append(ports, binary.BigEndian.Uint16(v))
				}
				if a, ok := destination(loaded, v); ok {
					addresses = append(addresses, a)
				}
			}
			loaded = expr.Payload{}
		case "match": // an iptables extension: its name, and its data (struct xt_tcp, xt_udp or xt_multiport_v1)
			ports = append(ports, portOfMatch(e)...)
		}
	}
	if len(ports) == 0 && len(addresses) == 0 {
		return nil
	}
	return combine(ports, addresses)
}

func isPort(p expr.Payload) bool {
	return p.Base == expr.PayloadBaseTransportHeader && p.Offset == 2 && p.Len == 2
}

// destination returns the address value if p loads the destination address, and false otherwise. If the prefix length
// is a multiple of 8, nft compares only the leading bytes. The other bytes are then zero.
func destination(p expr.Payload, value []byte) (a netip.Addr, ok bool) {
	size := map[uint32]int{16: 4, 24: 16}[p.Offset]
	if p.Base != expr.PayloadBaseNetworkHeader || len(value) == 0 || len(value) > size {
		return a, false
	}
	return netip.AddrFromSlice(append(slices.Clone(value), make([]byte, size-len(value))...))
}

func portOfMatch(e kernelExpr) []uint16 {
	a := parse(e.data)
	return iptables.PortsOfExtension(a.text(unix.NFTA_MATCH_NAME), a.get(unix.NFTA_MATCH_INFO))
}

// comparedValues returns some of the values that a condition matches: the first value of a range, or up to
// maxSetElements elements of a set.
func (c *conn) comparedValues(at owner, e kernelExpr) (values [][]byte) {
	switch e.name {
	case "cmp":
		if x := (&expr.Cmp{}); e.decodeAs(e.name, x) {
			return [][]byte{x.Data}
		}
	case "range":
		if x := (&expr.Range{}); e.decodeAs(e.name, x) {
			return [][]byte{x.FromData}
		}
	case "lookup":
		x := &expr.Lookup{}
		if !e.decodeAs(e.name, x) {
			return nil
		}
		elements, _ := c.elementsOf(int(at.family), at.table, x.SetName) // ignore a set that cannot be read
		for _, v := range elements {
			if !v.end {
				values = append(values, v.value)
			}
		}
	}
	return values[:min(len(values), maxSetElements)]
}

// maxSetElements is the maximum number of elements that are tested of another program's set.
const maxSetElements = 8

func combine(ports []uint16, addresses []netip.Addr) (all []iptables.NamedDestination) {
	if len(ports) == 0 {
		ports = []uint16{0}
	}
	if len(addresses) == 0 {
		addresses = []netip.Addr{{}}
	}
	for _, p := range ports {
		for _, a := range addresses {
			all = append(all, iptables.NamedDestination{Port: p, Address: a})
		}
	}
	return all
}
