package agent

import (
	"fmt"
	"io"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// printLastGood tells how old Envoy's configuration is, and what is kept of it.
func printLastGood(w io.Writer, g xdsproxy.LastGoodStatus) {
	switch {
	case g.Served:
		fmt.Fprintf(w, "configuration\tthe last good one, up to date until %s\n", ago(g.UpToDate))
	case !g.UpToDate.IsZero():
		fmt.Fprintf(w, "configuration\tup to date until %s\n", ago(g.UpToDate))
	}
	k := g.Kept
	if k == nil {
		fmt.Fprintf(w, "kept\tnothing\n")
		return
	}
	fmt.Fprintf(w, "kept\t%s, %d bytes", k.File, k.Bytes)
	if !k.Marked.IsZero() {
		fmt.Fprintf(w, ", whole %s", ago(k.Marked))
	}
	if k.Reason != "" {
		fmt.Fprintf(w, "; nothing newer is: %s", oneLine(k.Reason))
	}
	if len(k.Withheld) > 0 {
		fmt.Fprintf(w, "; not kept, since there are secrets in it: %s", strings.Join(k.Withheld, ", "))
	}
	fmt.Fprintln(w)
}
