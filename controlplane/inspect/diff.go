package inspect

import (
	"fmt"
	"io"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/compare"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

// WriteDiff writes the changes of proxies and the problems of documents.
func WriteDiff(out io.Writer, proxies int, groups []compare.Group, problems []config.Problem) error {
	var b strings.Builder
	for _, p := range problems {
		if p.Severity != config.Info {
			fmt.Fprintln(&b, termtext.Escape(p.String()))
		}
	}
	touched := 0
	for _, g := range groups {
		touched += len(g.Proxies)
		fmt.Fprintf(&b, "\n%s\n", termtext.Escape(proxyNames(g.Proxies)))
		for _, c := range g.Changes {
			writeChange(&b, c)
		}
	}
	if len(groups) > 0 {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%d of %d proxies would be changed\n", touched, proxies)
	return terminal.Detect(out).WriteText(out, termtext.EscapeLines(b.String()))
}

func writeChange(b *strings.Builder, c compare.Change) {
	mark := map[compare.Kind]string{compare.Added: "+", compare.Removed: "-", compare.Changed: "~"}[c.Kind]
	fmt.Fprintf(b, "  %s %s %s\n", mark, c.Type, termtext.Escape(c.Name))
	for _, v := range c.Values {
		switch {
		case v.Before == "":
			fmt.Fprintf(b, "      + %s: %s\n", termtext.Escape(v.Path), termtext.Escape(v.After))
		case v.After == "":
			fmt.Fprintf(b, "      - %s: %s\n", termtext.Escape(v.Path), termtext.Escape(v.Before))
		default:
			fmt.Fprintf(b, "      ~ %s: %s → %s\n", termtext.Escape(v.Path), termtext.Escape(v.Before), termtext.Escape(v.After))
		}
	}
	if c.More > 0 {
		fmt.Fprintf(b, "      … and %d more\n", c.More)
	}
}

func proxyNames(ids []string) string {
	var out []string
	for _, id := range ids {
		if parts := strings.Split(id, "~"); len(parts) == 4 {
			id = parts[2]
		}
		out = append(out, id)
	}
	return strings.Join(head(out), ", ")
}
