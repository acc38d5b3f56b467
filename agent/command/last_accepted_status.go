package command

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// addLastGood adds rows to t: when the control plane last confirmed Envoy's configuration, and which parts of the
// configuration are stored. The agent can start Envoy with the stored parts if no control plane responds.
func addLastGood(t *terminal.Table, g xdsproxy.LastGoodStatus) {
	switch {
	case g.Served:
		t.AddRow("configuration", "Envoy has the stored configuration; the control plane last confirmed it "+formatAgo(g.UpToDate))
	case !g.UpToDate.IsZero():
		t.AddRow("configuration", "the control plane last confirmed it "+formatAgo(g.UpToDate))
	}
	k := g.Storage
	if k == nil || k.Directory == "" && k.Reason == "" {
		t.AddRow("stored", "no configuration")
		return
	}
	stored := fmt.Sprintf("%s, %d bytes", cmp.Or(k.Directory, "no directory"), k.Bytes)
	if !k.Saved.IsZero() {
		stored += ", saved " + formatAgo(k.Saved)
	}
	if k.Reason != "" {
		stored += "; newer configuration is not stored: " + termtext.ShortLine(k.Reason)
	}
	if len(k.Withheld) > 0 {
		stored += "; not stored, because it contains secrets: " + strings.Join(k.Withheld, ", ")
	}
	t.AddRow("stored", stored)
}
