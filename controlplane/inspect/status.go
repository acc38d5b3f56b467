package inspect

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

// columns lists the resource types that have a column in the table.
var columns = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.VirtualHostType, xds.SecretType, xds.ExtensionType, xds.NameTableType}

// WriteClients writes a table with the synchronization state of the proxies.
func WriteClients(out io.Writer, clients []xds.ClientStatus, now time.Time) error {
	var notes strings.Builder
	f := terminal.Detect(out)
	titles := []string{"", "PROXY", "ADDRESS", "FOR", "PROTOCOL"}
	for _, typeURL := range columns {
		titles = append(titles, strings.ToUpper(xds.ShortType(typeURL)))
	}
	table := f.NewTable(titles...).SetOptional("FOR", "PROTOCOL", "ADDRESS")
	for _, c := range clients {
		mark := "✓"
		if !c.InSync {
			mark = "…"
		}
		if c.Degraded != "" {
			mark = "!"
			fmt.Fprintf(&notes, "  %s is degraded: %s\n", termtext.Escape(Name(c)), termtext.OneLine(c.Degraded))
		}
		byType := map[string]xds.TypeStatus{}
		for _, t := range c.Types {
			byType[t.TypeURL] = t
			if t.Rejected != nil {
				mark = "✗"
				writeRejection(&notes, Name(c), t)
			}
			if t.Error != "" {
				mark = "✗"
				fmt.Fprintf(&notes, "  %s: the control plane cannot generate %s: %s\n", termtext.Escape(Name(c)), xds.ShortType(t.TypeURL), termtext.OneLine(t.Error))
			}
		}
		addClient(table, c, mark, byType, now)
	}
	if err := table.Write(out); err != nil || notes.Len() == 0 {
		return err
	}
	return f.WriteText(out, "\n"+termtext.EscapeLines(notes.String()))
}

func addClient(table *terminal.Table, c xds.ClientStatus, mark string, byType map[string]xds.TypeStatus, now time.Time) {
	cells := []string{mark, Name(c), c.Address, now.Sub(c.Connected).Round(time.Second).String(), c.Protocol}
	first := len(cells)
	for _, typeURL := range columns {
		t, ok := byType[typeURL]
		cells = append(cells, typeState(t, ok))
	}
	table.AddRow(cells...)
	for i, typeURL := range columns {
		switch t := byType[typeURL]; {
		case t.Rejected != nil, t.Error != "":
			table.PaintCell(first+i, terminal.Red)
		case t.Unanswered > 0:
			table.PaintCell(first+i, terminal.Amber)
		}
	}
}

func typeState(t xds.TypeStatus, asked bool) string {
	switch {
	case !asked:
		return "-"
	case t.Rejected != nil:
		return "rejected"
	case t.Error != "":
		return "failed"
	case t.Unanswered > 0:
		return fmt.Sprintf("%d, unanswered", t.Resources)
	}
	return fmt.Sprint(t.Resources)
}

func writeRejection(out *strings.Builder, name string, t xds.TypeStatus) {
	fmt.Fprintf(out, "  %s rejected %s %s: %s\n", termtext.Escape(name), xds.ShortType(t.TypeURL), termtext.Escape(strings.Join(head(t.Rejected.Resources), ", ")), termtext.OneLine(t.Rejected.Reason))
	for _, b := range t.Rejected.From {
		fmt.Fprintf(out, "    possible cause: %s at %s: %s\n", termtext.Escape(b.Document), termtext.Escape(b.Position), termtext.OneLine(b.Evidence))
	}
}

func head(list []string) []string {
	const most = 5
	if len(list) <= most {
		return list
	}
	return append(list[:most:most], fmt.Sprintf("… and %d more", len(list)-most))
}
