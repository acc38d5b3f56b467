package nft

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// restart discards the encoded attributes and the error.
func (w *writer) restart() { w.out, w.failure = w.out[:0], nil }

// addExpression adds an expression to a list of expressions. It stores an error of the library in failure.
func (w *writer) addExpression(e expr.Any) {
	at := w.nest(unix.NFTA_LIST_ELEM)
	data, err := expr.Marshal(unix.NFPROTO_INET, e)
	if err != nil {
		w.failure = fmt.Errorf("encoding %T: %w", e, err)
	}
	w.out = append(w.out, data...)
	w.close(at)
}
