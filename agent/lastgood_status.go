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
	if k.InMemory {
		fmt.Fprintf(w, "kept\tin memory alone, %d bytes in %d", k.Bytes, k.Memory)
	} else {
		fmt.Fprintf(w, "kept\t%s, %d bytes", k.File, k.Bytes)
	}
	if !k.Marked.IsZero() {
		fmt.Fprintf(w, ", whole %s", ago(k.Marked))
	}
	if k.Reason != "" {
		fmt.Fprintf(w, "; nothing newer is: %s", oneLine(k.Reason))
	}
	if k.NoDisk != "" {
		fmt.Fprintf(w, "; not on disk: %s", oneLine(k.NoDisk))
	}
	if len(k.Withheld) > 0 {
		fmt.Fprintf(w, "; not kept, since there are secrets in it: %s", strings.Join(k.Withheld, ", "))
	}
	fmt.Fprintln(w)
}
