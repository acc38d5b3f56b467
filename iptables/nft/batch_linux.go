package nft

import (
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// batch is a transaction in the making.
type batch struct {
	messages []message
	sets     uint32 // how many there are, the last one's number
	rule     string // being made, for errors
}

func (b *batch) add(kind uint16, flags uint16, what string, body []byte) {
	b.messages = append(b.messages, message{kind: kind, flags: flags, body: body, what: what})
}

// replace adds what makes the table hold the rule set and nothing else, from what it holds. Base chains that stay are
// filled anew and not made anew: a packet walks a chain wholly before the transaction or wholly after it, but it would
// see the new chain before and the old one after.
func (b *batch) replace(rules *iptables.RuleSet, old *state) error {
	if err := checkChains(rules); err != nil {
		return err
	}
	if old.flags != 0 { // a dormant one lets everything by: nothing escapes that did not
		b.remove()
		old = &state{}
	}
	b.add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, "table "+Table, text(unix.NFTA_TABLE_NAME, Table))
	stay := b.prune(rules, old)
	for _, c := range rules.Chains {
		if name := chainName(c); !stay[name] {
			b.chain(name, bases[stage{c.Table, c.Hook}])
		}
	}
	for _, c := range rules.Chains {
		if err := b.fill(rules, c); err != nil {
			return fmt.Errorf("%s: %w", b.rule, err)
		}
	}
	return nil
}

// prune adds what takes all rules away, and the chains that do not stay.
func (b *batch) prune(rules *iptables.RuleSet, old *state) (stay map[string]bool) {
	stay = map[string]bool{}
	if !old.exists {
		return stay
	}
	b.add(unix.NFT_MSG_DELRULE, 0, "all rules", text(unix.NFTA_RULE_TABLE, Table))
	for _, c := range rules.Chains {
		want, isBase := bases[stage{c.Table, c.Hook}]
		if have := old.chain(chainName(c)); isBase && have != nil && have.base != nil && *have.base == want && have.accepts {
			stay[have.name] = true
		}
	}
	for _, set := range old.named {
		b.add(unix.NFT_MSG_DELSET, 0, "set "+set, concat(text(unix.NFTA_SET_TABLE, Table), text(unix.NFTA_SET_NAME, set)))
	}
	for _, c := range old.chains {
		if !stay[c.name] {
			b.add(unix.NFT_MSG_DELCHAIN, 0, "chain "+c.name, concat(text(unix.NFTA_CHAIN_TABLE, Table), text(unix.NFTA_CHAIN_NAME, c.name)))
		}
	}
	return stay
}

// remove adds what takes the table away.
func (b *batch) remove() {
	b.add(unix.NFT_MSG_DELTABLE, 0, "table "+Table, text(unix.NFTA_TABLE_NAME, Table))
}

// nfAccept is NF_ACCEPT of linux/netfilter.h, as a policy of a base chain.
const nfAccept = 1

// chain adds a chain, a base chain where it has a kind.
func (b *batch) chain(name string, at base) {
	parts := [][]byte{text(unix.NFTA_CHAIN_TABLE, Table), text(unix.NFTA_CHAIN_NAME, name)}
	if at.kind != "" {
		parts = append(parts,
			nested(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, at.hook), number(unix.NFTA_HOOK_PRIORITY, uint32(at.priority))),
			number(unix.NFTA_CHAIN_POLICY, nfAccept), text(unix.NFTA_CHAIN_TYPE, at.kind))
	}
	b.add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, "chain "+name, concat(parts...))
}

// fill adds the rules of a chain.
func (b *batch) fill(rules *iptables.RuleSet, c iptables.Chain) error {
	name := chainName(c)
	if proto := nfproto(rules.Families); c.Hook != "" && proto != 0 {
		err := b.append(name, familiesID, []expr.Any{meta(expr.MetaKeyNFPROTO),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{proto}}, &expr.Verdict{Kind: expr.VerdictAccept}})
		if err != nil {
			return err
		}
	}
	for _, r := range c.Rules {
		b.rule = "rule " + r.ID
		if err := b.ruleOf(name, c.Table, r); err != nil {
			return err
		}
	}
	return nil
}

// ruleOf adds a rule of the model, in canonical form.
func (b *batch) ruleOf(chain string, table iptables.Table, r iptables.Rule) error {
	if len(r.ID) > maxComment {
		return fmt.Errorf("its ID is longer than %d characters", maxComment)
	}
	exprs, err := b.expressions(table, r, r.Verdict)
	if err != nil {
		return err
	}
	if err := b.append(chain, r.ID, exprs); err != nil || r.Verdict.Action != iptables.TransparentProxy {
		return err
	}
	if exprs, err = b.expressions(table, r, iptables.Verdict{Action: iptables.Drop}); err != nil {
		return err
	}
	return b.append(chain, r.ID+unheard, exprs)
}

func (b *batch) expressions(table iptables.Table, r iptables.Rule, v iptables.Verdict) ([]expr.Any, error) {
	c := conditions{batch: b}
	if err := c.match(r.Match); err != nil {
		return nil, err
	}
	then, err := verdict(table, v, r.Match)
	if err != nil {
		return nil, err
	}
	c.exprs = append(c.exprs, &expr.Counter{}) // for people: nft list table inet pilotfish
	return append(c.exprs, then...), nil
}

// append adds a rule of the kernel's at the end of a chain.
func (b *batch) append(chain, comment string, exprs []expr.Any) error {
	var list [][]byte
	for _, e := range exprs {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return fmt.Errorf("encode %T: %w", e, err)
		}
		list = append(list, nested(unix.NFTA_LIST_ELEM, data))
	}
	b.add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, "rule "+comment, concat(
		text(unix.NFTA_RULE_TABLE, Table), text(unix.NFTA_RULE_CHAIN, chain),
		nested(unix.NFTA_RULE_EXPRESSIONS, list...),
		attribute(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, comment))))
	return nil
}
