package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// addVerdict adds the expressions for a rule's verdict. table is the rule's table in the model.
func (w *writer) addVerdict(table iptables.Table, v iptables.Verdict, m iptables.Match) error {
	switch v.Action {
	case iptables.Return:
		w.addExpression(&expr.Verdict{Kind: expr.VerdictReturn})
	case iptables.Accept:
		w.addExpression(&expr.Verdict{Kind: expr.VerdictAccept})
	case iptables.Drop:
		w.addExpression(&expr.Verdict{Kind: expr.VerdictDrop})
	case iptables.Jump:
		w.addExpression(&expr.Verdict{Kind: expr.VerdictJump, Chain: jumpName(table, v.Chain)})
	case iptables.Redirect, iptables.TransparentProxy:
		return w.capture(v, m)
	case iptables.Reject:
		return w.reject(m)
	case iptables.SetMark:
		w.setMark(v.Mark)
	case iptables.SaveMark:
		w.load(expr.MetaKeyMARK)
		w.addExpression(&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true})
	case iptables.RestoreMark:
		w.addExpression(&expr.Ct{Key: expr.CtKeyMARK, Register: 1})
		w.addExpression(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true})
	case iptables.Zone:
		w.loadData(binary.NativeEndian.AppendUint16(nil, v.ZoneID))
		w.addExpression(&expr.Ct{Key: expr.CtKeyZONE, Register: 1, SourceRegister: true})
	default:
		return fmt.Errorf("unknown action %q", v.Action)
	}
	return nil
}

// loadData adds an expression that loads the data into register 1.
func (w *writer) loadData(data []byte) { w.addExpression(&expr.Immediate{Register: 1, Data: data}) }

func (w *writer) capture(v iptables.Verdict, m iptables.Match) error {
	if m.Protocol == iptables.AnyProtocol {
		return errors.New("a rule that redirects packets must match a protocol")
	}
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], v.Port)
	w.loadData(port[:])
	if v.Action == iptables.Redirect {
		w.addExpression(&expr.Redir{RegisterProtoMin: 1})
		return nil
	}
	w.addExpression(&expr.TProxy{RegPort: 1})
	w.setMark(v.Mark)
	w.addExpression(&expr.Verdict{Kind: expr.VerdictAccept})
	return nil
}

// icmpxPortUnreachable is NFT_REJECT_ICMPX_PORT_UNREACH.
const icmpxPortUnreachable = 1

func (w *writer) reject(m iptables.Match) error {
	switch m.Protocol {
	case iptables.TCP:
		w.addExpression(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	case iptables.UDP:
		w.addExpression(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: icmpxPortUnreachable})
	default:
		return errors.New("a rule that rejects packets must match a protocol")
	}
	return nil
}

func (w *writer) setMark(m iptables.Mark) {
	if m.Mask == ^uint32(0) {
		w.loadData(host(m.Value))
	} else {
		w.load(expr.MetaKeyMARK)
		w.addExpression(masked(^m.Mask, m.Value&m.Mask))
	}
	w.addExpression(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true})
}
