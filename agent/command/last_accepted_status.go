package command

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// printLastGood prints the age of the configuration that Envoy uses, and which parts of it are stored. The agent can
// start Envoy with the stored parts if no control plane responds.
func printLastGood(w io.Writer, g xdsproxy.LastGoodStatus) {
	switch {
	case g.Served:
		fmt.Fprintf(w, "configuration\tthe stored one; the control plane last confirmed it %s\n", formatAgo(g.UpToDate))
	case !g.UpToDate.IsZero():
		fmt.Fprintf(w, "configuration\tthe control plane last confirmed it %s\n", formatAgo(g.UpToDate))
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
		fmt.Fprintf(w, "; newer configuration is not stored: %s", termtext.ShortLine(k.Reason))
	}
	if len(k.Withheld) > 0 {
		fmt.Fprintf(w, "; not stored, because it contains secrets: %s", strings.Join(k.Withheld, ", "))
	}
	fmt.Fprintln(w)
}
