package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/controlplane/inspect"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// proxyConfigOptions are the flags of `pilotfish proxy-config`.
type proxyConfigOptions struct {
	query
	admin, from, filter string
	levels              []string
}

func newProxyConfigCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "proxy-config PART WORKLOAD",
		Aliases: []string{"pc"},
		Short:   "Show a proxy's listeners, routes, clusters, endpoints and more",
		Long: `Show a part of a proxy's configuration as a table or, with -o json or yaml, in
full. Listeners, routes, clusters and endpoints are shown as the control plane
sends them (--from control-plane), or as Envoy uses them (--from envoy). Secrets
(without their keys), the bootstrap and the log levels are always read from
Envoy.

The Envoys of a mesh on this machine are reached through the mesh. For other
Envoys, specify the address of the admin interface with --envoy-admin; a control
plane is then not required.

Exit codes:
  0  success
  1  the control plane or Envoy does not respond
  2  wrong flags, no mesh is running, or the proxy is not connected`,
		Example: `  pilotfish proxy-config routes page-v1
  pilotfish proxy-config clusters page-v1 --from envoy
  pilotfish proxy-config log page-v1 --level router:debug
  pilotfish proxy-config listeners --envoy-admin 127.0.0.1:15000
  pilotfish proxy-config listeners --envoy-admin unix:/run/pilotfish/admin.sock`,
	}
	for _, part := range []struct{ name, alias, short string }{
		{"listeners", "listener", "Show a proxy's listeners, and how they process connections"},
		{"routes", "route", "Show a proxy's routes"},
		{"clusters", "cluster", "Show a proxy's clusters, and how it connects to them"},
		{"endpoints", "endpoint", "Show the endpoints of a proxy's clusters"},
		{"secrets", "secret", "Show a proxy's certificates and their expiry, without keys"},
		{"bootstrap", "", "Show the bootstrap of a proxy's Envoy"},
		{"log", "", "Show or, with --level, set the log levels of a proxy's Envoy"},
		{"all", "", "Show all resources of a proxy"},
	} {
		c.AddCommand(newPartCommand(part.name, part.alias, part.short))
	}
	return c
}

func newPartCommand(part, alias, short string) *cobra.Command {
	var o proxyConfigOptions
	c := &cobra.Command{
		Use: part + " [WORKLOAD]", Short: short, Args: usage.Args("[WORKLOAD]"), ValidArgsFunction: o.completeWorkloads,
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, part, args) },
	}
	if alias != "" {
		c.Aliases = []string{alias}
	}
	o.flags(c)
	c.Flags().StringVar(&o.admin, "envoy-admin", "", "address of Envoy's admin interface, such as 127.0.0.1:15000 or unix:/run/pilotfish/admin.sock")
	if _, ok := inspect.Parts[part]; ok || part == "all" {
		c.Flags().StringVar(&o.from, "from", "", "source of the configuration: control-plane or envoy (default: control-plane; with --envoy-admin: envoy)")
		c.Flags().StringVar(&o.filter, "filter", "", "show only resources whose name contains this text")
		usage.SetCompletions(c, "from", "control-plane", "envoy")
	}
	if part == "log" {
		c.Flags().StringSliceVar(&o.levels, "level", nil, "set the level of one logger (LOGGER:LEVEL) or of all loggers (LEVEL): trace, debug, info, warning, error, critical or off (default: show the levels)")
	}
	return c
}

func (o *proxyConfigOptions) run(c *cobra.Command, part string, args []string) error {
	if err := o.checkOutput(); err != nil {
		return err
	}
	if o.from != "" && o.from != "envoy" && o.from != "control-plane" {
		return usageError{fmt.Errorf("--from %q: use control-plane or envoy", o.from)}
	}
	var client *inspect.Client
	var running *mesh.Client
	var found xds.ClientStatus
	switch {
	case len(args) == 1:
		var err error
		if client, running, found, err = o.find(c.Context(), args[0]); err != nil {
			return err
		}
	case o.admin == "":
		return usageError{fmt.Errorf("no proxy is specified: name a workload, or specify an Envoy with --envoy-admin; see `%s --help`", c.CommandPath())}
	}
	fromEnvoy := o.from == "envoy" || o.admin != "" && o.from == ""
	_, tabled := inspect.Parts[part]
	if (tabled || part == "all") && !fromEnvoy {
		if client == nil {
			return usageError{fmt.Errorf("--from control-plane requires a workload: name one as the argument")}
		}
		all, err := client.Resources(c.Context(), found.ID)
		if err != nil {
			return err
		}
		return o.write(c.OutOrStdout(), part, all)
	}
	admin, err := envoyAdmin(running, found, o.admin)
	if err != nil {
		return err
	}
	return o.runFromEnvoy(c, part, admin)
}

func (o *proxyConfigOptions) runFromEnvoy(c *cobra.Command, part string, admin *inspect.Admin) error {
	out := c.OutOrStdout()
	switch part {
	case "log":
		text, err := admin.Levels(c.Context(), o.levels)
		if err == nil {
			_, err = io.WriteString(out, text)
		}
		return err
	case "bootstrap":
		bootstrap, err := admin.Bootstrap(c.Context())
		if err != nil {
			return err
		}
		if o.output == "" {
			o.output = "yaml"
		}
		return printAs(out, bootstrap, o.output)
	case "secrets":
		secrets, err := admin.Secrets(c.Context())
		if err != nil {
			return err
		}
		if o.output != "" {
			return printAs(out, secrets, o.output)
		}
		return inspect.WriteSecrets(out, secrets)
	}
	all, err := admin.Resources(c.Context())
	if err != nil {
		return err
	}
	return o.write(out, part, all)
}

// write writes those resources in all that belong to part and whose names contain the text of --filter. It modifies
// all.
func (o *proxyConfigOptions) write(out io.Writer, part string, all map[string][]inspect.Resource) error {
	types := inspect.Parts[part]
	for typeURL, list := range all {
		if part != "all" && !slices.Contains(types, typeURL) {
			delete(all, typeURL)
			continue
		}
		all[typeURL] = slices.DeleteFunc(list, func(r inspect.Resource) bool { return !strings.Contains(r.Name, o.filter) })
	}
	if o.output != "" {
		return printAs(out, all, o.output)
	}
	if part != "all" {
		return inspect.WriteTable(out, part, all)
	}
	for _, name := range []string{"listeners", "routes", "clusters", "endpoints"} {
		if err := inspect.WriteTable(out, name, all); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	return nil
}
