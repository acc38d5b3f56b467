package inspect

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

// columns lists the resource types that have a column in the table.
var columns = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.VirtualHostType, xds.SecretType, xds.ExtensionType, xds.NameTableType}

// WriteClients writes a table with the synchronization state of the proxies.
func WriteClients(out io.Writer, clients []xds.ClientStatus, now time.Time) error {
	var notes strings.Builder
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprint(w, "\tPROXY\tADDRESS\tFOR\tPROTOCOL")
	for _, typeURL := range columns {
		fmt.Fprintf(w, "\t%s", strings.ToUpper(xds.ShortType(typeURL)))
	}
	fmt.Fprintln(w)
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s", mark, termtext.Escape(Name(c)), c.Address, now.Sub(c.Connected).Round(time.Second), c.Protocol)
		for _, typeURL := range columns {
			t, ok := byType[typeURL]
			fmt.Fprintf(w, "\t%s", typeState(t, ok))
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if notes.Len() > 0 {
		_, err := fmt.Fprintf(out, "\n%s", notes.String())
		return err
	}
	return nil
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
		fmt.Fprintf(out, "    caused by %s at %s: %s\n", termtext.Escape(b.Document), termtext.Escape(b.Position), termtext.OneLine(b.Evidence))
	}
}

func head(list []string) []string {
	const most = 5
	if len(list) <= most {
		return list
	}
	return append(list[:most:most], fmt.Sprintf("… and %d more", len(list)-most))
}
