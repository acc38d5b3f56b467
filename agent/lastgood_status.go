package agent

import (
	"fmt"
	"io"
	"strings"

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
	if k == nil {
		fmt.Fprintf(w, "stored\tnothing\n")
		return
	}
	if k.InMemory {
		fmt.Fprintf(w, "stored\tin memory only, %d bytes in %d", k.Bytes, k.Memory)
	} else {
		fmt.Fprintf(w, "stored\t%s, %d bytes", k.File, k.Bytes)
	}
	if !k.LastCheckpoint.IsZero() {
		fmt.Fprintf(w, ", complete %s", formatAgo(k.LastCheckpoint))
	}
	if k.Reason != "" {
		fmt.Fprintf(w, "; nothing newer is stored: %s", oneLine(k.Reason))
	}
	if k.NoDisk != "" {
		fmt.Fprintf(w, "; not on disk: %s", oneLine(k.NoDisk))
	}
	if len(k.Withheld) > 0 {
		fmt.Fprintf(w, "; not stored, because it contains secrets: %s", strings.Join(k.Withheld, ", "))
	}
	fmt.Fprintln(w)
}
