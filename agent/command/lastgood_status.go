package command

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// printLastGood prints the age of Envoy's configuration, and which part of it is stored.
func printLastGood(w io.Writer, g xdsproxy.LastGoodStatus) {
	switch {
	case g.Served:
		fmt.Fprintf(w, "configuration\tlast accepted one, up to date until %s\n", formatAgo(g.UpToDate))
	case !g.UpToDate.IsZero():
		fmt.Fprintf(w, "configuration\tup to date until %s\n", formatAgo(g.UpToDate))
	}
	k := g.Storage
	if k == nil || k.Directory == "" && k.Reason == "" {
		fmt.Fprintf(w, "stored\tnothing\n")
		return
	}
	fmt.Fprintf(w, "stored\t%s, %d bytes", cmp.Or(k.Directory, "nothing"), k.Bytes)
	if !k.Saved.IsZero() {
		fmt.Fprintf(w, ", saved %s", formatAgo(k.Saved))
	}
	if k.Reason != "" {
		fmt.Fprintf(w, "; nothing newer is stored: %s", termtext.ShortLine(k.Reason))
	}
	if len(k.Withheld) > 0 {
		fmt.Fprintf(w, "; not stored, because it contains secrets: %s", strings.Join(k.Withheld, ", "))
	}
	fmt.Fprintln(w)
}
