package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/sds"
)

const certHelp = `Show the certificates that a running agent serves to its Envoy: the workload's own (default), the roots that peers'
certificates have to lead to (ROOTCA), and those from files that Envoy asks for. Keys are not shown.

Exit codes: 0; 1 when no agent answers, or the workload has no certificate that is valid; 2 wrong flags.`

const certTimeout = 15 * time.Second

// certificateReport is what the agent serves, and how it is.
type certificateReport struct {
	OK bool `json:"ok"`
	// Reason is what is wrong, or what is worth knowing.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// Outside is the socket of somebody else from whom Envoy gets its identity.
	Outside      string                `json:"outside,omitempty"`
	Certificates []sds.CertificateInfo `json:"certificates"`
}

// offerCertificates answers the command.
func (a *Agent) offerCertificates(server *sds.Server) {
	a.control.Handle("GET /certificates", answer(func(context.Context, struct{}) (certificateReport, error) {
		condition := server.Condition()
		r := certificateReport{OK: condition.OK, Reason: condition.Reason, Remedy: condition.Remedy, Certificates: server.Certificates()}
		if c := a.Config.Certificates; c.Outside == sds.OutsideSDS {
			r.Outside = c.Socket
		}
		return r, nil
	}))
}

func newCertCommand() *cobra.Command {
	var q question
	c := &cobra.Command{
		Use:     "cert",
		Short:   "Show the certificates that a running agent serves",
		Long:    certHelp,
		Example: "  pilotfish-agent cert\n  pilotfish-agent cert -o json",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r certificateReport
			if err := q.ask(cmd.Context(), certTimeout, http.MethodGet, "/certificates", nil, &r); err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			err := q.print(w, r, func(t io.Writer) { r.table(t, time.Now()) })
			if err == nil && q.format == formatTable {
				err = r.printRest(w)
			}
			if err != nil {
				return err
			}
			if !r.OK {
				return fmt.Errorf("the workload has no valid certificate: %s", cmp.Or(r.Reason, "the reason is not known"))
			}
			return nil
		},
	}
	q.addTo(c.Flags())
	return c
}

func (r certificateReport) table(t io.Writer, now time.Time) {
	fmt.Fprintln(t, "NAME\tIDENTITY\tSERIAL\tVALID FROM\tUNTIL\tLEFT\tNEXT ROTATION\tSOURCE")
	for _, c := range r.Certificates {
		next := "-"
		if !c.NextRotation.IsZero() {
			next = stamp(c.NextRotation)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", visible(c.Name), visible(cmp.Or(c.SPIFFEID, c.Subject, "-")), c.Serial,
			stamp(c.NotBefore), stamp(c.NotAfter), left(c.NotAfter.Sub(now)), next, visible(c.Source))
	}
}

// printRest prints what does not fit into the table.
func (r certificateReport) printRest(w io.Writer) error {
	var lines []string
	for _, c := range r.Certificates {
		if len(c.Chain) == 0 {
			continue
		}
		links := []string{cmp.Or(c.SPIFFEID, c.Subject)}
		for _, link := range c.Chain {
			links = append(links, fmt.Sprintf("%s (%s, until %s)", link.Subject, link.Serial, stamp(link.NotAfter)))
		}
		lines = append(lines, fmt.Sprintf("chain of %s: %s, signed by %s", c.Name, strings.Join(links, " < "), c.Chain[len(c.Chain)-1].Issuer))
	}
	if r.Outside != "" {
		lines = append(lines, "Envoy gets its identity from somebody else, on "+r.Outside)
	}
	if r.Reason != "" {
		lines = append(lines, "note: "+r.Reason)
	}
	if r.Reason != "" && r.Remedy != "" {
		lines = append(lines, "to do: "+r.Remedy)
	}
	for line := range slices.Values(lines) {
		if _, err := fmt.Fprintln(w, visible(line)); err != nil {
			return err
		}
	}
	return nil
}

// visible is a text of somebody else's, such as the subject of a certificate, as it may be written to a terminal: what would
// move its cursor, colour it or turn the direction of writing is escaped.
func visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// left is a time until an end, as a person reads it.
func left(d time.Duration) string {
	switch {
	case d <= 0:
		return "expired"
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	case d >= time.Hour:
		return d.Round(time.Minute).String()[:len(d.Round(time.Minute).String())-2]
	}
	return d.Round(time.Second).String()
}
