package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/internal/jsonyaml"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

const configHelp = `Print the configuration with which the command proxy would run, and the source
of each value. Configuration errors have the same messages and exit codes as
those of proxy. Values that may be secret are not shown.`

func newConfigCommand() *cobra.Command {
	o := &proxyOptions{}
	c := &cobra.Command{
		Use:     "config [sidecar|router|waypoint]",
		Short:   "Print the resolved configuration, with the source of each value",
		Long:    configHelp,
		Example: "  pilotfish-agent config\n  pilotfish-agent config router -o json",
		Args:    cobra.ArbitraryArgs,
		// The command line of proxy is accepted, so that its unknown flags are reported, too.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.print(cmd, args, false)
		},
	}
	o.addTo(c)
	o.log.AddHiddenTo(c.Flags())
	c.Flags().StringVarP(&o.format, "output", "o", formatTable, "output format: table, json or yaml")
	usage.SetCompletions(c, "output", formatTable, formatJSON, formatYAML)
	return c
}

func (o *proxyOptions) print(cmd *cobra.Command, args []string, withBootstrap bool) error {
	config, err := o.resolve(cmd, args)
	if err != nil {
		return err
	}
	// newReport always builds the bootstrap, so that this command reports all errors with which proxy would fail.
	r, err := newReport(config)
	if err != nil {
		return usageError{err}
	}
	if !withBootstrap {
		r.Bootstrap = nil
	}
	return r.print(cmd.OutOrStdout(), o.format)
}

const bootstrapHelp = `Print the complete bootstrap with which the command proxy would start Envoy. It
includes the changes by ISTIO_BOOTSTRAP_OVERRIDE, customConfigFile and similar
settings. Secrets are not shown.

Exit codes:
  0    success
  2    wrong configuration; with --validate also a bootstrap that Envoy rejects
  127  --validate found no Envoy`

func newBootstrapCommand() *cobra.Command {
	o := &bootstrapOptions{}
	c := &cobra.Command{
		Use:     "bootstrap [sidecar|router|waypoint]",
		Short:   "Print the bootstrap with which proxy would start Envoy",
		Long:    bootstrapHelp,
		Example: "  pilotfish-agent bootstrap\n  pilotfish-agent bootstrap router --validate -o yaml\n  pilotfish-agent bootstrap --grpc",
		Args:    usage.Args("[TYPE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.bootstrap(cmd, args)
		},
	}
	o.addTo(c)
	o.log.AddHiddenTo(c.Flags())
	c.Flags().StringVarP(&o.format, "output", "o", formatJSON, "output format: json or yaml")
	usage.SetCompletions(c, "output", formatJSON, formatYAML)
	c.Flags().BoolVar(&o.validate, "validate", false, "check with Envoy that it accepts the bootstrap (envoy --mode validate), and print the bootstrap")
	c.Flags().BoolVar(&o.grpc, "grpc", false, "print the bootstrap of proxyless gRPC clients instead")
	return c
}

type bootstrapOptions struct {
	proxyOptions
	validate, grpc bool
}

func (o *bootstrapOptions) bootstrap(cmd *cobra.Command, args []string) error {
	if o.format != formatJSON && o.format != formatYAML {
		return usagef("output format %q is not known; use json or yaml", o.format)
	}
	if o.validate && o.grpc {
		return usagef("--validate and --grpc: Envoy cannot check the bootstrap of gRPC clients; use one of them")
	}
	config, err := o.resolve(cmd, args)
	if err != nil {
		return err
	}
	render := bootstrapJSON
	if o.grpc {
		render = grpcBootstrap
	}
	text, err := render(config)
	if err != nil {
		return usageError{err}
	}
	if o.validate {
		verdict, err := agent.ValidateBootstrap(cmd.Context(), config)
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), verdict)
	}
	if o.format == formatYAML {
		return jsonyaml.Write(cmd.OutOrStdout(), text)
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}
