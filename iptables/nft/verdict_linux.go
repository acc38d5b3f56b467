package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// verdict gives the expressions of a verdict in a chain of a table.
func verdict(table iptables.Table, v iptables.Verdict, m iptables.Match) ([]expr.Any, error) {
	switch v.Action {
	case iptables.Return:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}, nil
	case iptables.Accept:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}, nil
	case iptables.Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}, nil
	case iptables.Jump:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: jumpName(table, v.Chain)}}, nil
	case iptables.Redirect, iptables.TransparentProxy:
		return capture(v, m)
	case iptables.Reject:
		return reject(m)
	case iptables.SetMark:
		return setMark(v.Mark), nil
	case iptables.SaveMark:
		return []expr.Any{meta(expr.MetaKeyMARK), &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}}, nil
	case iptables.RestoreMark:
		return []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}}, nil
	case iptables.Zone:
		return []expr.Any{immediate(binary.NativeEndian.AppendUint16(nil, v.ZoneID)),
			&expr.Ct{Key: expr.CtKeyZONE, Register: 1, SourceRegister: true}}, nil
	}
	return nil, fmt.Errorf("action %q is unknown", v.Action)
}

func immediate(data []byte) *expr.Immediate { return &expr.Immediate{Register: 1, Data: data} }

func capture(v iptables.Verdict, m iptables.Match) ([]expr.Any, error) {
	if m.Protocol == iptables.AnyProtocol {
		return nil, errors.New("a port to redirect to needs a protocol")
	}
	port := immediate(binary.BigEndian.AppendUint16(nil, v.Port))
	if v.Action == iptables.Redirect {
		return []expr.Any{port, &expr.Redir{RegisterProtoMin: 1}}, nil
	}
	exprs := []expr.Any{port, &expr.TProxy{RegPort: 1}}
	exprs = append(exprs, setMark(v.Mark)...)
	return append(exprs, &expr.Verdict{Kind: expr.VerdictAccept}), nil
}

// icmpxPortUnreachable is NFT_REJECT_ICMPX_PORT_UNREACH.
const icmpxPortUnreachable = 1

func reject(m iptables.Match) ([]expr.Any, error) {
	switch m.Protocol {
	case iptables.TCP:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}, nil
	case iptables.UDP:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: icmpxPortUnreachable}}, nil
	}
	return nil, errors.New("a refusal needs a protocol")
}

func setMark(m iptables.Mark) []expr.Any {
	set := &expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}
	if m.Mask == ^uint32(0) {
		return []expr.Any{immediate(host(m.Value)), set}
	}
	return []expr.Any{meta(expr.MetaKeyMARK), masked(^m.Mask, m.Value&m.Mask), set}
}
