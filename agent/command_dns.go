package agent

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/dns"
)

func newDNSCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "dns",
		Short: "Ask a running agent about names",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newLookupCommand())
	return c
}

const lookupHelp = `Show what an application gets for a name, and why.

The name is looked up as the application's resolver would: with the search domains of resolv.conf, one after the other. A
name with a dot at its end stands as it is. Each name that was tried is shown with where its answer came from: mesh (the
control plane's names), cache, resolver, stale (a resolver's answer that is past its time, while none answers) or failed.`

func newLookupCommand() *cobra.Command {
	var q question
	var o lookupOrder
	c := &cobra.Command{
		Use:     "lookup NAME",
		Short:   "Show what an application gets for a name, and why",
		Long:    lookupHelp,
		Example: "  pilotfish-agent dns lookup reviews\n  pilotfish-agent dns lookup 10.96.0.1 --type PTR\n  pilotfish-agent dns lookup _http._tcp.reviews --type SRV -o json",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Name = dns.ReverseName(args[0], &o.Type)
			var r lookupReport
			if err := q.ask(cmd.Context(), 2*lookupTime+time.Second, http.MethodPost, "/dns/lookup", o, &r); err != nil {
				return err
			}
			return q.print(cmd.OutOrStdout(), r, r.table)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Type, "type", "", "type of record, such as A, AAAA, PTR or SRV (default A and AAAA)")
	q.addTo(f)
	return c
}

func (r lookupReport) table(t io.Writer) {
	fmt.Fprintln(t, "TYPE\tRESULT\tSOURCE\tANSWER")
	for _, e := range r.Lookups {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", e.Type, e.Rcode, e.Source, cmp.Or(strings.Join(e.Answers, "; "), "-"))
	}
	fmt.Fprintln(t, "\nTYPE\tTRIED\tRESULT\tSOURCE\tWHY")
	for _, e := range r.Lookups {
		for _, s := range e.Steps {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", e.Type, s.Asked, s.Rcode, s.Source, oneLine(s.Why))
		}
	}
}
