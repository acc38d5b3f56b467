package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

const checkHelp = `Check whether a running agent and its Envoy work, and how to correct what does
not:
  identity       the certificate is for the agent's service account
  control plane  the agent is connected to the control plane
  certificates   the certificates are valid and are renewed in time
  configuration  Envoy has accepted its newest configuration
  redirection    rules redirect the pod's traffic to Envoy
  DNS            the agent's DNS server answers
  Envoy          Envoy runs and is ready

A check that does not apply to this agent is skipped. The check of the
redirection requires the privilege CAP_NET_ADMIN; without it, it is skipped.

Exit codes:
  0  no check has failed
  1  a check has failed, or no agent responds
  2  wrong flags`

const checkTimeout = 15 * time.Second

// checkOutput is the output of check as JSON and YAML.
type checkOutput struct {
	OK     bool                `json:"ok"`
	Checks []agent.CheckResult `json:"checks"`
}

func newCheckCommand() *cobra.Command {
	var q agentQuery
	c := &cobra.Command{
		Use:     "check",
		Short:   "Check whether a running agent and its Envoy work",
		Long:    checkHelp,
		Example: "  pilotfish-agent check\n  pilotfish-agent check -o json",
		Args:    usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r agent.CheckReport
			if err := q.call(cmd.Context(), checkTimeout, http.MethodGet, "/check", nil, &r); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
			defer cancel()
			checks := addRedirectionCheck(r.Checks, checkRedirection(ctx, r))
			failed := countFailed(checks)
			out := checkOutput{OK: failed == 0, Checks: checks}
			if err := q.print(cmd.OutOrStdout(), out, func(w io.Writer) error { return printChecks(w, checks) }); err != nil {
				return err
			}
			if failed > 0 {
				return errors.New(phrase.Count(failed, "check") + " failed")
			}
			return nil
		},
	}
	q.addTo(c)
	return c
}

// addRedirectionCheck returns a copy of checks with redirection inserted before the check of the DNS server. If checks
// has no such check, redirection becomes the first.
func addRedirectionCheck(checks []agent.CheckResult, redirection agent.CheckResult) []agent.CheckResult {
	at := slices.IndexFunc(checks, func(c agent.CheckResult) bool { return c.Name == agent.CheckDNS })
	return slices.Insert(slices.Clone(checks), max(at, 0), redirection)
}

func countFailed(checks []agent.CheckResult) (failed int) {
	for _, c := range checks {
		if c.State == agent.CheckFailed {
			failed++
		}
	}
	return failed
}

var checkMarks = map[agent.CheckState]string{agent.CheckPassed: "✓", agent.CheckFailed: "✗", agent.CheckSkipped: "-"}

// printChecks prints a row for each check, and then the remedies.
func printChecks(w io.Writer, checks []agent.CheckResult) error {
	f := terminal.Detect(w)
	table := f.NewTable()
	var remedies strings.Builder
	for _, c := range checks {
		table.AddRow(checkMarks[c.State], c.Name, c.Detail)
		if c.State == agent.CheckSkipped {
			table.PaintCell(2, terminal.Dim)
		}
		if c.State == agent.CheckFailed && c.Remedy != "" {
			fmt.Fprintf(&remedies, "  %s: %s\n", c.Name, termtext.OneLine(c.Remedy))
		}
	}
	if err := table.Write(w); err != nil || remedies.Len() == 0 {
		return err
	}
	return f.WriteText(w, f.Paint(terminal.Bold, "\nRemedies")+"\n"+remedies.String())
}
