package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

// batch is an nftables transaction under construction: a datagram of messages. finish sets their sequence numbers.
type batch struct {
	writer
	parts []part
	sets  uint32 // number of sets so far; a set's ID is its number
	rule  string // ID of the current rule, for errors
	body  writer // expressions of the current rule
}

// part contains the kind and name of the nftables object that a netlink message changes, such as "rule" and
// "outbound/all". Errors name the object.
type part struct{ what, name string }

// Initial capacities: bytes and messages of a batch, and bytes of a rule. They are sufficient for most batches.
const (
	usualBytes = 16 << 10
	usualParts = 64
	usualRule  = 1 << 10
)

// newBatch starts a transaction. The kernel rejects it if generation is not the current generation of the rules. For 0,
// the kernel accepts any generation.
func newBatch(generation uint32) *batch {
	b := &batch{writer: writer{out: make([]byte, 0, usualBytes)}, parts: make([]part, 0, usualParts), body: writer{out: make([]byte, 0, usualRule)}}
	at := b.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	b.number(unix.NFNL_BATCH_GENID, generation)
	b.end(at)
	return b
}

func (b *batch) begin(kind, flags uint16, family byte, resource uint16) (at int) {
	at = len(b.out)
	b.out = nlsocket.Append(b.out, kind, flags, 0)
	b.out = binary.BigEndian.AppendUint16(append(b.out, family, unix.NFNETLINK_V0), resource)
	return at
}

func (b *batch) end(at int) {
	binary.NativeEndian.PutUint32(b.out[at:], uint32(len(b.out)-at))
}

// message starts a message about the object about, and returns the offset of the message.
func (b *batch) message(kind, flags uint16, about part) (at int) {
	b.parts = append(b.parts, about)
	return b.begin(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, unix.NFPROTO_INET, 0)
}

// finish completes the datagram. It numbers the messages, starting with first. Only the last message requests an ACK,
// which confirms the whole transaction.
func (b *batch) finish(first uint32) []byte {
	b.end(b.begin(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES))
	left := b.out
	for i := 0; len(left) > 0; i++ {
		if i == len(b.parts) {
			flags := binary.NativeEndian.Uint16(left[6:])
			binary.NativeEndian.PutUint16(left[6:], flags|unix.NLM_F_ACK)
		}
		binary.NativeEndian.PutUint32(left[8:], first+uint32(i))
		left = left[binary.NativeEndian.Uint32(left):]
	}
	return b.out
}

// replace adds messages that change the table from its current state to the rule set. It flushes and refills existing
// base chains instead of recreating them. A packet then traverses either the old or the new rules of a chain. If a base
// chain were recreated, a packet could traverse both.
func (b *batch) replace(rules *iptables.RuleSet, old *state) error {
	if err := checkChains(rules); err != nil {
		return err
	}
	// Recreate a dormant table: the kernel did not evaluate its rules, so the new table does not open a gap.
	if old.flags != 0 {
		b.remove()
		old = &state{}
	}
	at := b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, part{"table", Table})
	b.text(unix.NFTA_TABLE_NAME, Table)
	b.end(at)
	stay := b.prune(rules, old)
	for _, c := range rules.Chains {
		if name := chainName(c); !stay[name] {
			b.chain(name, bases[stage{c.Table, c.Hook}])
		}
	}
	for _, c := range rules.Chains {
		if err := b.fill(rules, c); err != nil {
			return fmt.Errorf("rule %s: %w", b.rule, err)
		}
	}
	return nil
}

// prune adds messages that delete all rules, and the chains that the rule set does not need. It returns the names of the
// remaining chains.
func (b *batch) prune(rules *iptables.RuleSet, old *state) (stay map[string]bool) {
	stay = map[string]bool{}
	if !old.exists {
		return stay
	}
	at := b.message(unix.NFT_MSG_DELRULE, 0, part{"all", "rules"})
	b.text(unix.NFTA_RULE_TABLE, Table)
	b.end(at)
	for _, c := range rules.Chains {
		want, isBase := bases[stage{c.Table, c.Hook}]
		if have := old.chain(chainName(c)); isBase && have != nil && have.base != nil && *have.base == want && have.accepts {
			stay[have.name] = true
		}
	}
	for _, set := range old.named {
		at := b.message(unix.NFT_MSG_DELSET, 0, part{"set", set})
		b.text(unix.NFTA_SET_TABLE, Table)
		b.text(unix.NFTA_SET_NAME, set)
		b.end(at)
	}
	for _, c := range old.chains {
		if !stay[c.name] {
			at := b.message(unix.NFT_MSG_DELCHAIN, 0, part{"chain", c.name})
			b.text(unix.NFTA_CHAIN_TABLE, Table)
			b.text(unix.NFTA_CHAIN_NAME, c.name)
			b.end(at)
		}
	}
	return stay
}

// remove adds the message that deletes the table.
func (b *batch) remove() {
	at := b.message(unix.NFT_MSG_DELTABLE, 0, part{"table", Table})
	b.text(unix.NFTA_TABLE_NAME, Table)
	b.end(at)
}

// nfAccept is NF_ACCEPT of linux/netfilter.h: the accept policy of a base chain.
const nfAccept = 1

// chain adds a chain. If of.kind is set, it is a base chain.
func (b *batch) chain(name string, of base) {
	at := b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, part{"chain", name})
	defer b.end(at)
	b.text(unix.NFTA_CHAIN_TABLE, Table)
	b.text(unix.NFTA_CHAIN_NAME, name)
	if of.kind == "" {
		return
	}
	hook := b.nest(unix.NFTA_CHAIN_HOOK)
	b.number(unix.NFTA_HOOK_HOOKNUM, of.hook)
	b.number(unix.NFTA_HOOK_PRIORITY, uint32(of.priority))
	b.close(hook)
	b.number(unix.NFTA_CHAIN_POLICY, nfAccept)
	b.text(unix.NFTA_CHAIN_TYPE, of.kind)
}

// fill adds the rules of a chain.
func (b *batch) fill(rules *iptables.RuleSet, c iptables.Chain) error {
	name := chainName(c)
	if proto := nfproto(rules.Families); c.Hook != "" && proto != 0 {
		b.body.restart()
		b.body.load(expr.MetaKeyNFPROTO)
		b.body.addExpression(&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{proto}})
		b.body.addExpression(&expr.Verdict{Kind: expr.VerdictAccept})
		b.append(name, familiesID)
	}
	for _, r := range c.Rules {
		b.rule = r.ID
		if err := b.ruleOf(name, c.Table, r); err != nil {
			return err
		}
	}
	return nil
}

// ruleOf adds a rule of the model, which must be in canonical form.
func (b *batch) ruleOf(chain string, table iptables.Table, r iptables.Rule) error {
	if len(r.ID) > maxComment {
		return fmt.Errorf("its ID is longer than %d characters", maxComment)
	}
	if err := b.expressions(table, r, r.Verdict); err != nil {
		return err
	}
	b.append(chain, r.ID)
	if r.Verdict.Action != iptables.TransparentProxy {
		return nil
	}
	if err := b.expressions(table, r, iptables.Verdict{Action: iptables.Drop}); err != nil {
		return err
	}
	b.append(chain, r.ID+dropSuffix)
	return nil
}

// expressions writes the expressions of a rule. The sets to which they refer are separate messages, which precede the
// message of the rule.
func (b *batch) expressions(table iptables.Table, r iptables.Rule, v iptables.Verdict) error {
	b.body.restart()
	c := conditions{&b.body, b}
	if err := c.match(r.Match); err != nil {
		return err
	}
	c.addExpression(&expr.Counter{}) // nft list table inet pilotfish shows the counter to users
	if err := c.addVerdict(table, v, r.Match); err != nil {
		return err
	}
	return c.failure
}

// append adds a rule with the current expressions to the end of a chain.
func (b *batch) append(chain, comment string) {
	at := b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, part{"rule", comment})
	b.text(unix.NFTA_RULE_TABLE, Table)
	b.text(unix.NFTA_RULE_CHAIN, chain)
	list := b.nest(unix.NFTA_RULE_EXPRESSIONS)
	b.out = append(b.out, b.body.out...)
	b.close(list)
	b.comment(comment)
	b.end(at)
}

// comment writes a rule's comment to its user data, which is a list of type, length and value. The text ends with a zero
// byte.
func (b *batch) comment(s string) {
	at := b.open(unix.NFTA_RULE_USERDATA)
	b.out = append(b.out, byte(userdata.TypeComment), byte(len(s)+1))
	b.out = append(append(b.out, s...), 0)
	b.close(at)
}
