package describe

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Write writes the description for people.
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
		b.WriteString("\nNo service selects it: nobody calls it by a name of the mesh.\n")
	}
	for _, in := range d.Inbound {
		fmt.Fprintf(&b, "\nServes %s:%d (%s, at its port %d", in.Service, in.Port, in.Protocol, in.Target)
		if in.Endpoint != "" {
			fmt.Fprintf(&b, ", handed to %s", in.Endpoint)
		}
		fmt.Fprintf(&b, ")\n  accepts %s", in.MTLS)
		if in.By != "" {
			fmt.Fprintf(&b, ", as %s says", in.By)
		}
		b.WriteByte('\n')
		documents(&b, "  its callers follow ", in.Callers)
	}
	section(&b, "Gateways that it serves", d.Gateways)
	b.WriteString("\nWho may call it\n")
	lines(&b, "  ", d.Access)
	documents(&b, "  ", d.Policies)
	b.WriteString("\nWhat it sees\n")
	lines(&b, "  ", d.Scope)
	section(&b, "Rules for its calls", d.Outbound)
	section(&b, "Other documents that apply to it", d.Others)
	_, err := io.WriteString(out, plain(b.String()))
	return err
}

func section(b *strings.Builder, title string, list []Document) {
	if len(list) > 0 {
		fmt.Fprintf(b, "\n%s\n", title)
		documents(b, "  ", list)
	}
}

func documents(b *strings.Builder, before string, list []Document) {
	for _, d := range list {
		fmt.Fprintf(b, "%s%s", before, d.Resource)
		if d.At != "" {
			fmt.Fprintf(b, "  %s", d.At)
		}
		b.WriteByte('\n')
		lines(b, "      ", d.Says)
	}
}

func lines(b *strings.Builder, before string, list []string) {
	for _, line := range list {
		fmt.Fprintf(b, "%s%s\n", before, line)
	}
}

// plain keeps what is in a document from steering the terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return ' '
		}
		return r
	}, text)
}
