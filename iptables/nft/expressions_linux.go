package nft

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The frequent expressions are encoded here, and rare ones by the library. The library needs a dozen allocations for each
// expression. If it encoded all of them, encoding would need as much time as the kernel needs to install the rules.

// restart discards the encoded attributes and the error.
func (w *writer) restart() { w.out, w.failure = w.out[:0], nil }

// addExpression adds an expression, encoded by the library.
func (w *writer) addExpression(e expr.Any) {
	at := w.nest(unix.NFTA_LIST_ELEM)
	data, err := expr.Marshal(unix.NFPROTO_INET, e)
	if err != nil {
		w.failure = fmt.Errorf("encoding %T: %w", e, err)
	}
	w.out = append(w.out, data...)
	w.close(at)
}

// openExpression starts the named expression. It returns the offsets of the nested attributes that the caller must close.
func (w *writer) openExpression(name string) (whole, about int) {
	whole = w.nest(unix.NFTA_LIST_ELEM)
	w.text(unix.NFTA_EXPR_NAME, name)
	return whole, w.nest(unix.NFTA_EXPR_DATA)
}

func (w *writer) done(whole, about int) {
	w.close(about)
	w.close(whole)
}

// value adds an attribute that contains data (NFTA_DATA_VALUE).
func (w *writer) value(kind uint16, data []byte) {
	at := w.nest(kind)
	w.bytes(unix.NFTA_DATA_VALUE, data)
	w.close(at)
}

func (w *writer) meta(e expr.Meta) {
	whole, about := w.openExpression("meta")
	w.number(unix.NFTA_META_KEY, uint32(e.Key))
	if e.SourceRegister {
		w.number(unix.NFTA_META_SREG, e.Register)
	} else {
		w.number(unix.NFTA_META_DREG, e.Register)
	}
	w.done(whole, about)
}

func (w *writer) payload(e expr.Payload) {
	whole, about := w.openExpression("payload")
	w.number(unix.NFTA_PAYLOAD_DREG, e.DestRegister)
	w.number(unix.NFTA_PAYLOAD_BASE, uint32(e.Base))
	w.number(unix.NFTA_PAYLOAD_OFFSET, e.Offset)
	w.number(unix.NFTA_PAYLOAD_LEN, e.Len)
	w.done(whole, about)
}

func (w *writer) cmp(e expr.Cmp) {
	whole, about := w.openExpression("cmp")
	w.number(unix.NFTA_CMP_SREG, e.Register)
	w.number(unix.NFTA_CMP_OP, uint32(e.Op))
	w.value(unix.NFTA_CMP_DATA, e.Data)
	w.done(whole, about)
}

func (w *writer) encodeRange(e expr.Range) {
	whole, about := w.openExpression("range")
	w.number(unix.NFTA_RANGE_SREG, e.Register)
	w.number(unix.NFTA_RANGE_OP, uint32(e.Op))
	w.value(unix.NFTA_RANGE_FROM_DATA, e.FromData)
	w.value(unix.NFTA_RANGE_TO_DATA, e.ToData)
	w.done(whole, about)
}

func (w *writer) counter(e expr.Counter) {
	whole, about := w.openExpression("counter")
	w.number64(unix.NFTA_COUNTER_BYTES, e.Bytes)
	w.number64(unix.NFTA_COUNTER_PACKETS, e.Packets)
	w.done(whole, about)
}

func (w *writer) immediate(e expr.Immediate) {
	whole, about := w.openExpression("immediate")
	w.number(unix.NFTA_IMMEDIATE_DREG, e.Register)
	w.value(unix.NFTA_IMMEDIATE_DATA, e.Data)
	w.done(whole, about)
}

// redirect adds a redirect to the port in register 1.
func (w *writer) redirect() {
	whole, about := w.openExpression("redir")
	w.number(unix.NFTA_REDIR_REG_PROTO_MIN, 1)
	w.done(whole, about)
}

func (w *writer) verdict(e expr.Verdict) {
	whole, about := w.openExpression("immediate")
	w.number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
	data := w.nest(unix.NFTA_IMMEDIATE_DATA)
	verdict := w.nest(unix.NFTA_DATA_VERDICT)
	w.number(unix.NFTA_VERDICT_CODE, uint32(e.Kind))
	if e.Chain != "" {
		w.text(unix.NFTA_VERDICT_CHAIN, e.Chain)
	}
	w.close(verdict)
	w.close(data)
	w.done(whole, about)
}
