package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// decode converts the state of our table to a rule set in canonical form.
func decode(s *state) *iptables.Installed {
	out := &iptables.Installed{}
	if !s.exists {
		return out
	}
	out.Rules = &iptables.RuleSet{Families: familiesOf(s)}
	for _, k := range s.chains {
		c := modelChain(k.name)
		if want, isBase := bases[stage{c.Table, c.Hook}]; (k.base != nil) != isBase || (isBase && (*k.base != want || !k.accepts)) {
			out.Strange = append(out.Strange, fmt.Sprintf("unexpected chain %s (%s)", k.name, k.describe()))
		}
		rules, strange := decodeChain(s, k, out.Rules.Families)
		c.Rules = rules
		out.Strange = append(out.Strange, strange...)
		out.Rules.Chains = append(out.Rules.Chains, c)
	}
	switch {
	case s.flags&unix.NFT_TABLE_F_DORMANT != 0:
		out.Strange = append(out.Strange, "the table is dormant, so the kernel does not evaluate its rules")
	case s.flags != 0:
		out.Strange = append(out.Strange, fmt.Sprintf("the table has the unexpected flags %#x", s.flags))
	}
	for _, name := range s.named {
		out.Strange = append(out.Strange, "unexpected set "+name)
	}
	out.Rules = iptables.Canonical(out.Rules)
	return out
}

func (k kernelChain) describe() string {
	if k.base == nil {
		return "not a base chain"
	}
	policy := "drop"
	if k.accepts {
		policy = "accept"
	}
	return fmt.Sprintf("type %s, hook %d, priority %d, policy %s", k.base.kind, k.base.hook, k.base.priority, policy)
}

// hasFamilyGuard reports whether the chain may begin with a rule that selects the address family. It may if it is one
// of our base chains.
func (k kernelChain) hasFamilyGuard() bool { return k.base != nil && modelChain(k.name).Hook != "" }

// familiesOf returns the address families of the rule set. In a rule set for one family, every base chain begins with a
// rule that accepts packets of the other family.
func familiesOf(s *state) iptables.Families {
	found := iptables.Families(0)
	for _, k := range s.chains {
		if !k.hasFamilyGuard() {
			continue
		}
		f := iptables.BothFamilies
		if len(k.rules) > 0 {
			f = guardedFamily(k.rules[0])
		}
		if found != 0 && f != found {
			return iptables.BothFamilies
		}
		found = f
	}
	if found == 0 {
		return iptables.BothFamilies
	}
	return found
}

// guardedFamily returns the address family of packets that the first rule of a base chain does not accept. The
// following rules apply to this family.
func guardedFamily(r kernelRule) iptables.Families {
	if r.comment == familiesID && len(r.exprs) == 3 {
		var load expr.Meta
		var cmp expr.Cmp
		then, ok := verdictOf(r.exprs[2])
		if ok && r.exprs[0].decodeAs("meta", &load) && r.exprs[1].decodeAs("cmp", &cmp) && load.Key == expr.MetaKeyNFPROTO && cmp.Op == expr.CmpOpNeq && len(cmp.Data) == 1 && then.Kind == expr.VerdictAccept {
			return familyOfNumber(cmp.Data[0])
		}
	}
	return iptables.BothFamilies
}

func familyOfNumber(n byte) iptables.Families {
	switch n {
	case unix.NFPROTO_IPV4:
		return iptables.IPv4
	case unix.NFPROTO_IPV6:
		return iptables.IPv6
	}
	return iptables.BothFamilies
}

// decodeChain decodes a chain's rules. It omits the rule that selects the address family.
func decodeChain(s *state, k kernelChain, families iptables.Families) (rules []iptables.Rule, strange []string) {
	list := k.rules
	if k.hasFamilyGuard() && families != iptables.BothFamilies {
		list = list[1:]
	}
	for i := 0; i < len(list); i++ {
		r, err := decodeRule(s, k.name, list[i])
		if err == nil && r.Verdict.Action == iptables.TransparentProxy {
			if i+1 == len(list) || list[i+1].comment != r.ID+dropSuffix {
				err = errors.New("the next rule must drop packets that have no listener, but does not")
			} else {
				i++
			}
		}
		if err != nil {
			strange = append(strange, fmt.Sprintf("rule %q (handle %d) in chain %s: %v", list[i].comment, list[i].handle, k.name, err))
			continue
		}
		rules = append(rules, r)
	}
	return rules, strange
}

func decodeRule(s *state, chain string, k kernelRule) (iptables.Rule, error) {
	d := decoder{sets: s.sets, table: modelChain(chain).Table}
	for _, e := range k.exprs {
		if err := d.step(e); err != nil {
			return iptables.Rule{}, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	r := iptables.Rule{ID: k.comment, Match: d.match, Verdict: d.verdict}
	switch {
	case r.Verdict.Action == "":
		return r, errors.New("the rule has no verdict")
	case r.Verdict.Action == iptables.TransparentProxy && !d.accepted:
		return r, errors.New("the rule does not accept the packet after tproxy")
	case len(r.Match.Source)+len(r.Match.Destination) > 0 && nfproto(r.Match.Families) == 0:
		return r, errors.New("the rule matches an address without matching the address family")
	}
	return r, nil
}

// decoder decodes the expressions of a rule in order. Our rules use only one register of the kernel.
type decoder struct {
	sets     map[string]kernelSet
	table    iptables.Table
	register any    // expression that loaded the register: *expr.Meta, *expr.Payload, *expr.Ct, *expr.Immediate
	mask     []byte // mask that was applied to the register
	xor      []byte
	match    iptables.Match
	verdict  iptables.Verdict
	accepted bool
}

var errWords = errors.New("pilotfish does not install rules of this form")

// decodeAs decodes the expression into target. It returns false if the expression has another name or is malformed.
func (e kernelExpr) decodeAs(name string, target expr.Any) bool {
	return e.name == name && expr.Unmarshal(unix.NFPROTO_INET, e.data, target) == nil
}

func (d *decoder) step(e kernelExpr) error {
	switch e.name {
	case "counter":
		return nil
	case "meta", "payload", "ct":
		return d.load(e)
	case "immediate":
		return d.immediate(e)
	case "bitwise":
		return d.bitwise(e)
	case "cmp", "range", "lookup":
		return d.compare(e)
	case "reject":
		return d.reject(e)
	case "redir":
		return d.redirect(e)
	case "tproxy":
		return d.tproxy(e)
	}
	return errWords
}

// load decodes an expression that loads a property of the packet into the register, or stores the register in the packet.
func (d *decoder) load(e kernelExpr) error {
	var from any
	switch e.name {
	case "meta":
		x := &expr.Meta{}
		if !e.decodeAs(e.name, x) {
			return errWords
		}
		if x.SourceRegister {
			return d.storeMark(x)
		}
		from = x
	case "ct":
		x := &expr.Ct{}
		if !e.decodeAs(e.name, x) {
			return errWords
		}
		if parse(e.data).get(unix.NFTA_CT_SREG) != nil { // the library does not decode ct set
			return d.storeConnection(x)
		}
		from = x
	case "payload":
		x := &expr.Payload{}
		if !e.decodeAs(e.name, x) || x.OperationType != expr.PayloadLoad {
			return errWords
		}
		from = x
	}
	d.register, d.mask, d.xor = from, nil, nil
	return nil
}

func (d *decoder) bitwise(e kernelExpr) error {
	x := &expr.Bitwise{}
	if !e.decodeAs(e.name, x) || d.mask != nil || d.register == nil || len(x.Mask) == 0 || len(x.Mask) != len(x.Xor) {
		return errWords
	}
	d.mask, d.xor = x.Mask, x.Xor
	return nil
}

func (d *decoder) immediate(e kernelExpr) error {
	x := &expr.Immediate{}
	if !e.decodeAs(e.name, x) {
		return errWords
	}
	if x.Register == unix.NFT_REG_VERDICT {
		return d.decide(e)
	}
	d.register, d.mask, d.xor = x, nil, nil
	return nil
}

// verdictOf decodes a verdict. It does not use the library's function, which does not check the length of the data.
func verdictOf(e kernelExpr) (v expr.Verdict, ok bool) {
	if e.name != "immediate" {
		return v, false
	}
	a := parse(parse(parse(e.data).get(unix.NFTA_IMMEDIATE_DATA)).get(unix.NFTA_DATA_VERDICT))
	code, ok := a.number(unix.NFTA_VERDICT_CODE)
	return expr.Verdict{Kind: expr.VerdictKind(int32(code)), Chain: a.text(unix.NFTA_VERDICT_CHAIN)}, ok
}

func (d *decoder) decide(e kernelExpr) error {
	v, ok := verdictOf(e)
	if !ok {
		return errWords
	}
	if d.verdict.Action == iptables.TransparentProxy && v.Kind == expr.VerdictAccept {
		d.accepted = true
		return nil
	}
	switch v.Kind {
	case expr.VerdictReturn:
		return d.setVerdict(iptables.Verdict{Action: iptables.Return})
	case expr.VerdictAccept:
		return d.setVerdict(iptables.Verdict{Action: iptables.Accept})
	case expr.VerdictDrop:
		return d.setVerdict(iptables.Verdict{Action: iptables.Drop})
	case expr.VerdictJump:
		to := modelChain(v.Chain)
		if to.Table != d.table || to.Hook != "" {
			return fmt.Errorf("the rule jumps to %s, a chain of another kind", v.Chain)
		}
		return d.setVerdict(iptables.Verdict{Action: iptables.Jump, Chain: to.Name})
	}
	return errWords
}

// setVerdict sets the verdict. It fails if the rule already has one.
func (d *decoder) setVerdict(v iptables.Verdict) error {
	if d.verdict.Action != "" {
		return fmt.Errorf("the rule has the action %s after the action %s", v.Action, d.verdict.Action)
	}
	d.verdict = v
	return nil
}

// constant returns the constant in the register. It returns false if the register contains no constant of at least
// size bytes.
func (d *decoder) constant(size int) ([]byte, bool) {
	x, ok := d.register.(*expr.Immediate)
	if !ok || len(x.Data) < size || d.mask != nil {
		return nil, false
	}
	return x.Data, true
}

func (d *decoder) redirect(e kernelExpr) error {
	x := &expr.Redir{}
	port, ok := d.constant(2)
	if !e.decodeAs(e.name, x) || !ok || x.RegisterProtoMin == 0 || (x.RegisterProtoMax != 0 && x.RegisterProtoMax != x.RegisterProtoMin) {
		return errWords
	}
	return d.setVerdict(iptables.Verdict{Action: iptables.Redirect, Port: binary.BigEndian.Uint16(port)})
}

func (d *decoder) reject(e kernelExpr) error {
	x := &expr.Reject{}
	if !e.decodeAs(e.name, x) {
		return errWords
	}
	switch {
	case d.match.Protocol == iptables.TCP && x.Type == unix.NFT_REJECT_TCP_RST:
	case d.match.Protocol == iptables.UDP && x.Type == unix.NFT_REJECT_ICMPX_UNREACH && x.Code == icmpxPortUnreachable:
	default:
		return errors.New("the rule rejects packets in another way than pilotfish's rules")
	}
	return d.setVerdict(iptables.Verdict{Action: iptables.Reject})
}

func (d *decoder) tproxy(e kernelExpr) error {
	port, ok := d.constant(2)
	if a := parse(e.data); !ok || a.get(expr.NFTA_TPROXY_REG_ADDR) != nil || a.get(expr.NFTA_TPROXY_REG_PORT) == nil {
		return errWords
	}
	return d.setVerdict(iptables.Verdict{Action: iptables.TransparentProxy, Port: binary.BigEndian.Uint16(port)})
}

func (d *decoder) storeMark(x *expr.Meta) error {
	if x.Key != expr.MetaKeyMARK {
		return errWords
	}
	if from, ok := d.register.(*expr.Ct); ok && from.Key == expr.CtKeyMARK && d.mask == nil {
		return d.setVerdict(iptables.Verdict{Action: iptables.RestoreMark})
	}
	m, ok := d.markValue()
	if !ok {
		return errWords
	}
	if d.verdict.Action == iptables.TransparentProxy && !d.accepted {
		d.verdict.Mark = m
		return nil
	}
	return d.setVerdict(iptables.Verdict{Action: iptables.SetMark, Mark: m})
}

// markValue returns the mark that the rule sets: a constant, or the previous mark with some bits changed.
func (d *decoder) markValue() (iptables.Mark, bool) {
	if b, ok := d.constant(4); ok {
		return iptables.Mark{Value: binary.NativeEndian.Uint32(b), Mask: ^uint32(0)}, true
	}
	from, ok := d.register.(*expr.Meta)
	if !ok || from.Key != expr.MetaKeyMARK || len(d.mask) != 4 {
		return iptables.Mark{}, false
	}
	return iptables.Mark{Value: binary.NativeEndian.Uint32(d.xor), Mask: ^binary.NativeEndian.Uint32(d.mask)}, true
}

func (d *decoder) storeConnection(x *expr.Ct) error {
	switch x.Key {
	case expr.CtKeyMARK:
		if from, ok := d.register.(*expr.Meta); ok && from.Key == expr.MetaKeyMARK && d.mask == nil {
			return d.setVerdict(iptables.Verdict{Action: iptables.SaveMark})
		}
	case expr.CtKeyZONE:
		if b, ok := d.constant(2); ok {
			return d.setVerdict(iptables.Verdict{Action: iptables.Zone, ZoneID: binary.NativeEndian.Uint16(b)})
		}
	}
	return errWords
}

// trimmed returns an interface name without trailing zeros.
func trimmed(b []byte) string { return strings.TrimRight(string(b), "\x00") }
