package command

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

const certHelp = `Show the certificates that a running agent serves to its Envoy: the workload
certificate (named default), the roots that verify peers (named ROOTCA), and the
certificates from files that Envoy requests. Keys are not shown.

Exit codes:
  0  success
  1  no agent responds, or the workload has no valid certificate
  2  wrong flags`

const certTimeout = 15 * time.Second

func newCertCommand() *cobra.Command {
	var q agentQuery
	c := &cobra.Command{
		Use:     "cert",
		Short:   "Show the certificates that a running agent serves",
		Long:    certHelp,
		Example: "  pilotfish-agent cert\n  pilotfish-agent cert -o json",
		Args:    usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r agent.CertificateReport
			if err := q.call(cmd.Context(), certTimeout, http.MethodGet, "/certificates", nil, &r); err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			err := q.print(w, r, func(w io.Writer) error { return printCertificates(w, r, time.Now()) })
			if err == nil && q.format == formatTable {
				err = printCertificateDetails(w, r)
			}
			if err != nil {
				return err
			}
			if !r.OK {
				return fmt.Errorf("the workload has no valid certificate: %s", cmp.Or(r.Reason, "the agent reports no reason"))
			}
			return nil
		},
	}
	q.addTo(c)
	return c
}

func printCertificates(w io.Writer, r agent.CertificateReport, now time.Time) error {
	t := terminal.Detect(w).NewTable("NAME", "IDENTITY", "SERIAL", "VALID FROM", "UNTIL", "LEFT", "NEXT ROTATION", "SOURCE").SetOptional("VALID FROM", "SERIAL", "SOURCE")
	for _, c := range r.Certificates {
		next := "-"
		if !c.NextRotation.IsZero() {
			next = formatTime(c.NextRotation)
		}
		left := formatTimeLeft(c.NotAfter.Sub(now))
		t.AddRow(c.Name, cmp.Or(c.SPIFFEID, c.Subject), c.Serial, formatTime(c.NotBefore), formatTime(c.NotAfter), left, next, c.Source)
		if left == expired {
			t.PaintCell(leftColumn, terminal.Red)
		}
	}
	return t.Write(w)
}

const (
	leftColumn = 5
	expired    = "expired"
)

// printCertificateDetails prints the certificate chains and notes that follow the table.
func printCertificateDetails(w io.Writer, r agent.CertificateReport) error {
	var lines []string
	for _, c := range r.Certificates {
		if len(c.Chain) == 0 {
			continue
		}
		links := []string{cmp.Or(c.SPIFFEID, c.Subject)}
		for _, link := range c.Chain {
			links = append(links, fmt.Sprintf("%s (%s, until %s)", link.Subject, link.Serial, formatTime(link.NotAfter)))
		}
		lines = append(lines, fmt.Sprintf("chain of %s: %s, signed by %s", c.Name, strings.Join(links, " < "), c.Chain[len(c.Chain)-1].Issuer))
	}
	if r.ExternalSocket != "" {
		lines = append(lines, "Envoy fetches its certificate from an external server on "+r.ExternalSocket)
	}
	if r.Reason != "" {
		lines = append(lines, "note: "+r.Reason)
	}
	if r.Reason != "" && r.Remedy != "" {
		lines = append(lines, "remedy: "+r.Remedy)
	}
	for line := range slices.Values(lines) {
		if err := terminal.Detect(w).WriteText(w, termtext.Escape(line)+"\n"); err != nil {
			return err
		}
	}
	return nil
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// formatTimeLeft formats the remaining validity of a certificate.
func formatTimeLeft(d time.Duration) string {
	switch {
	case d <= 0:
		return expired
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	case d >= time.Hour:
		return d.Round(time.Minute).String()[:len(d.Round(time.Minute).String())-2]
	}
	return d.Round(time.Second).String()
}
