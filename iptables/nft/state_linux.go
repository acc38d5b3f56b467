package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// state is the content of our table in the kernel.
type state struct {
	generation uint32
	exists     bool
	flags      uint32 // flags of the table; 0 unless another program set them
	chains     []kernelChain
	sets       map[string]kernelSet
	named      []string // sets that are not anonymous, which other programs added
}

type kernelChain struct {
	name    string
	base    *base // nil if the chain is not a base chain
	accepts bool  // the policy of the base chain is accept
	rules   []kernelRule
}

type kernelRule struct {
	comment string
	handle  uint64
	exprs   []kernelExpr
}

type kernelExpr struct {
	name string
	data []byte
}

type kernelSet struct {
	flags    uint32
	elements []kernelElement
}

type kernelElement struct {
	value []byte
	end   bool
}

func (s *state) chain(name string) *kernelChain {
	for i := range s.chains {
		if s.chains[i].name == name {
			return &s.chains[i]
		}
	}
	return nil
}

// maxAttempts is the maximum number of attempts to read the state. An attempt fails if another process changes rules of
// the namespace meanwhile.
const maxAttempts = 20

// readState reads a consistent snapshot of our table. If full is not set, it omits rules and elements of sets.
func (c *conn) readState(full bool) (*state, error) {
	for range maxAttempts {
		s, err := c.readStateOnce(full)
		if errors.Is(err, errInterrupted) {
			continue
		}
		return s, err
	}
	return nil, fmt.Errorf("reading table %s: %w (%d attempts)", Table, errInterrupted, maxAttempts)
}

func (c *conn) readStateOnce(full bool) (*state, error) {
	generation, err := c.generation()
	if err != nil {
		return nil, err
	}
	s := &state{generation: generation, sets: map[string]kernelSet{}}
	if s.exists, s.flags, err = c.table(); err != nil || !s.exists {
		return s, err
	}
	if err := c.readChains(s); err != nil {
		return nil, fmt.Errorf("reading the chains of table %s: %w", Table, err)
	}
	if err := c.readSets(s, full); err != nil {
		return nil, fmt.Errorf("reading the sets of table %s: %w", Table, err)
	}
	if full {
		if err := c.readRules(s); err != nil {
			return nil, fmt.Errorf("reading the rules of table %s: %w", Table, err)
		}
	}
	if now, err := c.generation(); err != nil || now != generation {
		return nil, errors.Join(err, errInterrupted)
	}
	return s, nil
}

// table looks up our table and returns its flags.
func (c *conn) table() (exists bool, flags uint32, err error) {
	answer, err := c.get(message{kind: unix.NFT_MSG_GETTABLE, body: text(unix.NFTA_TABLE_NAME, Table)})
	if errors.Is(err, unix.ENOENT) {
		return false, 0, nil
	}
	if err != nil {
		return false, 0, fmt.Errorf("looking up table %s: %w", Table, err)
	}
	flags, _ = answer.number(unix.NFTA_TABLE_FLAGS)
	return true, flags, nil
}

func (c *conn) readChains(s *state) error {
	replies, err := c.dump(unix.NFT_MSG_GETCHAIN, nil)
	if err != nil {
		return err
	}
	for _, r := range replies {
		a := bodyOf(r)
		if len(r.Data) == 0 || r.Data[0] != unix.NFPROTO_INET || a.text(unix.NFTA_CHAIN_TABLE) != Table {
			continue
		}
		k := kernelChain{name: a.text(unix.NFTA_CHAIN_NAME)}
		if hook := a.get(unix.NFTA_CHAIN_HOOK); hook != nil {
			h := parse(hook)
			number, _ := h.number(unix.NFTA_HOOK_HOOKNUM)
			priority, _ := h.number(unix.NFTA_HOOK_PRIORITY)
			policy, _ := a.number(unix.NFTA_CHAIN_POLICY)
			k.base = &base{kind: a.text(unix.NFTA_CHAIN_TYPE), hook: number, priority: int32(priority)}
			k.accepts = policy == nfAccept
		}
		s.chains = append(s.chains, k)
	}
	return nil
}

func (c *conn) readRules(s *state) error {
	replies, err := c.dump(unix.NFT_MSG_GETRULE, text(unix.NFTA_RULE_TABLE, Table))
	if err != nil {
		return err
	}
	for _, r := range replies {
		a := bodyOf(r)
		chain := s.chain(a.text(unix.NFTA_RULE_CHAIN))
		if a.text(unix.NFTA_RULE_TABLE) != Table {
			continue
		}
		if chain == nil {
			return errInterrupted
		}
		chain.rules = append(chain.rules, kernelRuleOf(a))
	}
	return nil
}

func kernelRuleOf(a attributes) kernelRule {
	k := kernelRule{comment: comment(a.get(unix.NFTA_RULE_USERDATA))}
	if b := a.get(unix.NFTA_RULE_HANDLE); len(b) == 8 {
		k.handle = binary.BigEndian.Uint64(b)
	}
	for _, e := range parse(a.get(unix.NFTA_RULE_EXPRESSIONS)) {
		x := parse(e.data)
		k.exprs = append(k.exprs, kernelExpr{x.text(unix.NFTA_EXPR_NAME), x.get(unix.NFTA_EXPR_DATA)})
	}
	return k
}

// comment returns the comment in a rule's user data, which is a list of type, length and value.
func comment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		kind, value := data[0], data[2:2+int(data[1])]
		if kind == byte(userdata.TypeComment) {
			return string(bytes.TrimRight(value, "\x00"))
		}
		data = data[2+len(value):]
	}
	return ""
}

func (c *conn) readSets(s *state, full bool) error {
	replies, err := c.dump(unix.NFT_MSG_GETSET, text(unix.NFTA_SET_TABLE, Table))
	if err != nil {
		return err
	}
	for _, r := range replies {
		a := bodyOf(r)
		name := a.text(unix.NFTA_SET_NAME)
		flags, _ := a.number(unix.NFTA_SET_FLAGS)
		if flags&unix.NFT_SET_ANONYMOUS == 0 {
			s.named = append(s.named, name)
		}
		set := kernelSet{flags: flags}
		if full {
			if set.elements, err = c.readElements(name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		s.sets[name] = set
	}
	return nil
}

func (c *conn) readElements(set string) ([]kernelElement, error) {
	return c.elementsOf(unix.NFPROTO_INET, Table, set)
}

// elementsOf returns the elements of a set. The table may belong to another program.
func (c *conn) elementsOf(family int, table, set string) ([]kernelElement, error) {
	replies, err := c.request(message{kind: unix.NFT_MSG_GETSETELEM, flags: unix.NLM_F_DUMP, family: family, body: append(
		text(unix.NFTA_SET_ELEM_LIST_TABLE, table), text(unix.NFTA_SET_ELEM_LIST_SET, set)...)})
	if errors.Is(err, unix.ENOENT) {
		return nil, errInterrupted
	}
	var out []kernelElement
	for _, r := range replies {
		for _, e := range parse(bodyOf(r).get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			a := parse(e.data)
			flags, _ := a.number(unix.NFTA_SET_ELEM_FLAGS)
			out = append(out, kernelElement{
				value: parse(a.get(unix.NFTA_SET_ELEM_KEY)).get(unix.NFTA_DATA_VALUE),
				end:   flags&unix.NFT_SET_ELEM_INTERVAL_END != 0,
			})
		}
	}
	return out, err
}
