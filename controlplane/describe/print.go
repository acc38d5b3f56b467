package describe

import (
	"fmt"
	"io"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

// Write writes the description as text.
func (d Description) Write(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.%s  %s at %s", d.Workload, d.Namespace, d.Type, d.Address)
	if d.ServiceAccount != "" {
		fmt.Fprintf(&b, "  ns/%s/sa/%s", d.Namespace, d.ServiceAccount)
	}
	if d.Envoy != "" {
		fmt.Fprintf(&b, "  Envoy %s", d.Envoy)
	}
	b.WriteByte('\n')
	if d.Type == "sidecar" && len(d.Inbound) == 0 {
		b.WriteString("\nNo service selects the workload: other workloads cannot call it by name.\n")
	}
	for _, in := range d.Inbound {
		fmt.Fprintf(&b, "\nServes %s:%d (%s, on port %d of the workload", in.Service, in.Port, in.Protocol, in.Target)
		if in.Endpoint != "" {
			fmt.Fprintf(&b, ", forwarded to %s", in.Endpoint)
		}
		fmt.Fprintf(&b, ")\n  accepts %s", in.MTLS)
		if in.By != "" {
			fmt.Fprintf(&b, ", as %s specifies", in.By)
		}
		b.WriteByte('\n')
		writeDocuments(&b, "  clients apply ", in.Callers)
	}
	writeSection(&b, "Gateways that this proxy serves", d.Gateways)
	b.WriteString("\nClients that may call the workload\n")
	writeLines(&b, "  ", d.Access)
	writeDocuments(&b, "  ", d.Policies)
	b.WriteString("\nServices that the workload sees\n")
	writeLines(&b, "  ", d.Scope)
	writeSection(&b, "Rules for requests of the workload", d.Outbound)
	writeSection(&b, "Other documents that apply to the workload", d.OtherDocuments)
	_, err := io.WriteString(out, termtext.EscapeLines(b.String()))
	return err
}

func writeSection(b *strings.Builder, title string, list []Document) {
	if len(list) > 0 {
		fmt.Fprintf(b, "\n%s\n", title)
		writeDocuments(b, "  ", list)
	}
}

func writeDocuments(b *strings.Builder, before string, list []Document) {
	for _, d := range list {
		fmt.Fprintf(b, "%s%s", before, d.Resource)
		if d.At != "" {
			fmt.Fprintf(b, "  %s", termtext.Escape(d.At))
		}
		b.WriteByte('\n')
		writeLines(b, "      ", d.Effects)
	}
}

func writeLines(b *strings.Builder, before string, list []string) {
	for _, line := range list {
		fmt.Fprintf(b, "%s%s\n", before, termtext.Escape(line))
	}
}
