package describe

import (
	"fmt"
	"io"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

// Write writes the description as text.
func (d Description) Write(out io.Writer) error {
	f := terminal.Detect(out)
	return f.WriteText(out, d.text(f))
}

// text returns the description as escaped text.
func (d Description) text(f terminal.Format) string {
	b := printer{format: f}
	b.title(d.Workload + "." + d.Namespace)
	b.printf("  %s at %s", d.Type, d.Address)
	if d.ServiceAccount != "" {
		b.printf("  ns/%s/sa/%s", d.Namespace, d.ServiceAccount)
	}
	if d.Envoy != "" {
		b.printf("  Envoy %s", d.Envoy)
	}
	b.printf("\n")
	if d.Type != string(translate.Router) && len(d.Inbound) == 0 {
		b.printf("\nNo service selects the workload: other workloads cannot call it by name.\n")
	}
	for _, in := range d.Inbound {
		b.printf("\n")
		b.title(fmt.Sprintf("Serves %s:%d", in.Service, in.Port))
		b.printf(" (%s, on port %d of the workload", in.Protocol, in.Target)
		if in.Endpoint != "" {
			b.printf(", forwarded to %s", in.Endpoint)
		}
		b.printf(")\n  accepts %s", in.MTLS)
		if in.By != "" {
			b.printf(", as %s specifies", in.By)
		}
		b.printf("\n")
		b.documents("  clients apply ", in.Callers)
	}
	b.section("Gateways that this proxy serves", d.Gateways)
	b.printf("\n")
	b.title("Clients that may call the workload")
	b.printf("\n")
	b.lines("  ", d.Access)
	b.documents("  ", d.Policies)
	b.printf("\n")
	b.title("Services that the workload sees")
	b.printf("\n")
	b.lines("  ", d.Scope)
	b.section("Rules for requests of the workload", d.Outbound)
	b.section("Other documents that apply to the workload", d.OtherDocuments)
	return b.text.String()
}

// printer builds the text of a description, and escapes all values in it.
type printer struct {
	format terminal.Format
	text   strings.Builder
}

func (p *printer) printf(format string, args ...any) {
	p.text.WriteString(termtext.EscapeLines(fmt.Sprintf(format, args...)))
}

func (p *printer) title(text string) {
	p.text.WriteString(p.format.Paint(terminal.Bold, termtext.EscapeLines(text)))
}

func (p *printer) section(title string, list []Document) {
	if len(list) > 0 {
		p.printf("\n")
		p.title(title)
		p.printf("\n")
		p.documents("  ", list)
	}
}

func (p *printer) documents(before string, list []Document) {
	for _, d := range list {
		p.printf("%s%s", before, d.Resource)
		if d.At != "" {
			p.printf("  ")
			p.text.WriteString(p.format.Paint(terminal.Dim, termtext.Escape(d.At)))
		}
		p.printf("\n")
		p.lines("      ", d.Effects)
	}
}

func (p *printer) lines(before string, list []string) {
	for _, line := range list {
		p.printf("%s%s\n", before, termtext.Escape(line))
	}
}
