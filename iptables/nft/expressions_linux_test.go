package nft

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

func TestExpressionsAreEncodedLikeTheLibrarys(t *testing.T) {
	load, store := expr.Meta{Key: expr.MetaKeySKUID, Register: 1}, expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}
	port := expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	one, three := expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{6}}, expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1, 2, 3}}
	within := expr.Range{Op: expr.CmpOpNeq, Register: 1, FromData: []byte{1, 2}, ToData: []byte{3, 4}}
	counter := expr.Counter{Bytes: 1 << 40, Packets: 7}
	data := expr.Immediate{Register: 1, Data: []byte{58, 153}}
	back, jump := expr.Verdict{Kind: expr.VerdictReturn}, expr.Verdict{Kind: expr.VerdictJump, Chain: "ISTIO_REDIRECT"}
	for _, c := range []struct {
		by    func(*writer)
		whole expr.Any
	}{
		{func(w *writer) { w.meta(load) }, &load}, {func(w *writer) { w.meta(store) }, &store},
		{func(w *writer) { w.payload(port) }, &port},
		{func(w *writer) { w.cmp(one) }, &one}, {func(w *writer) { w.cmp(three) }, &three},
		{func(w *writer) { w.encodeRange(within) }, &within},
		{func(w *writer) { w.counter(counter) }, &counter},
		{func(w *writer) { w.immediate(data) }, &data},
		{func(w *writer) { w.verdict(back) }, &back}, {func(w *writer) { w.verdict(jump) }, &jump},
		{(*writer).redirect, &expr.Redir{RegisterProtoMin: 1}},
		{func(w *writer) { w.addExpression(&expr.TProxy{RegPort: 1}) }, &expr.TProxy{RegPort: 1}},
	} {
		t.Run(fmt.Sprintf("%T", c.whole), func(t *testing.T) {
			want, err := expr.Marshal(unix.NFPROTO_INET, c.whole)
			if err != nil {
				t.Fatal(err)
			}
			var got writer
			c.by(&got)
			var element writer
			element.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, want)
			if !bytes.Equal(got.out, element.out) {
				t.Errorf("\n%x\n%x", got.out, element.out)
			}
		})
	}
}
