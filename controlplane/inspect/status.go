package inspect

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// columns are the types that proxies are shown with.
var columns = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.VirtualHostType, xds.SecretType, xds.ExtensionType, xds.NameTableType}

// WriteClients writes how in sync the proxies are.
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
		byType := map[string]xds.TypeStatus{}
		for _, t := range c.Types {
			byType[t.TypeURL] = t
			if t.Rejected != nil {
				mark = "✗"
				writeRejection(&notes, Name(c), t)
			}
			if t.Error != "" {
				mark = "✗"
				fmt.Fprintf(&notes, "  %s: %s cannot be made: %s\n", Name(c), xds.ShortType(t.TypeURL), line(t.Error))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s", mark, line(Name(c)), c.Address, now.Sub(c.Connected).Round(time.Second), c.Protocol)
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
	fmt.Fprintf(out, "  %s rejected %s %s: %s\n", name, xds.ShortType(t.TypeURL), line(strings.Join(head(t.Rejected.Resources), ", ")), line(t.Rejected.Reason))
	for _, b := range t.Rejected.From {
		fmt.Fprintf(out, "    made of %s at %s: %s\n", line(b.Document), line(b.At), line(b.Why))
	}
}

func head(list []string) []string {
	const most = 5
	if len(list) <= most {
		return list
	}
	return append(list[:most:most], fmt.Sprintf("… and %d more", len(list)-most))
}

// line keeps text of others in one line, and from steering the terminal.
func line(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
