package command

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/dns"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

func newDNSCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "dns",
		Short: "Query the DNS server of a running agent",
		Args:  usage.Args(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newLookupCommand())
	return c
}

const lookupHelp = `Explain the DNS answer that an application receives for a name.

The name is resolved as by the application's resolver: with the search domains
of resolv.conf, in order. A name that ends with a dot is resolved without them.
The output shows each queried name and the source of its answer:
  mesh      the names that the control plane sent
  cache     an earlier answer of a resolver
  resolver  a resolver of resolv.conf
  stale     an expired answer, used while no resolver responds
  failed    no answer`

func newLookupCommand() *cobra.Command {
	var q agentQuery
	var o agent.LookupRequest
	c := &cobra.Command{
		Use:     "lookup NAME",
		Short:   "Explain the DNS answer for a name",
		Long:    lookupHelp,
		Example: "  pilotfish-agent dns lookup reviews\n  pilotfish-agent dns lookup 10.96.0.1 --type PTR\n  pilotfish-agent dns lookup _http._tcp.reviews --type SRV -o json",
		Args:    usage.Args("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Name = dns.ReverseName(args[0], &o.Type)
			var r agent.LookupReport
			if err := q.call(cmd.Context(), 2*agent.LookupTimeout+time.Second, http.MethodPost, "/dns/lookup", o, &r); err != nil {
				return err
			}
			return q.print(cmd.OutOrStdout(), r, func(w io.Writer) error { return printLookups(w, r) })
		},
	}
	f := c.Flags()
	f.StringVar(&o.Type, "type", "", "type of record, such as A, AAAA, PTR or SRV (default A and AAAA)")
	q.addTo(c)
	usage.SetCompletions(c, "type", "A", "AAAA", "CNAME", "PTR", "SRV", "TXT")
	return c
}

func printLookups(w io.Writer, r agent.LookupReport) error {
	f := terminal.Detect(w)
	results := f.NewTable("TYPE", "RESULT", "SOURCE", "ANSWER")
	steps := f.NewTable("TYPE", "TRIED", "RESULT", "SOURCE", "WHY")
	for _, e := range r.Lookups {
		results.AddRow(e.Type, e.Rcode, e.Source, strings.Join(e.Answers, "; "))
		for _, s := range e.Steps {
			steps.AddRow(e.Type, s.Query, s.Rcode, s.Source, termtext.ShortLine(s.Why))
		}
	}
	if err := results.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return steps.Write(w)
}
