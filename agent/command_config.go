package agent

import (
	"github.com/spf13/cobra"
)

const configHelp = `Print the configuration that proxy would run with, and where each value comes from. What is wrong with it is told as
proxy would tell it. Values that may be secret are not shown.`

func newConfigCommand() *cobra.Command {
	o := &proxyOptions{}
	c := &cobra.Command{
		Use:     "config [sidecar|router|waypoint]",
		Short:   "Print the configuration that proxy would run with, and where each value comes from",
		Long:    configHelp,
		Example: "  pilotfish-agent config\n  pilotfish-agent config router -o json",
		Args:    usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.print(cmd, args, false)
		},
	}
	o.addTo(c.Flags())
	c.Flags().StringVarP(&o.format, "output", "o", formatTable, "table, json or yaml")
	return c
}

func (o *proxyOptions) print(cmd *cobra.Command, args []string, withBootstrap bool) error {
	config, err := o.resolve(cmd, args)
	if err != nil {
		return err
	}
	r, err := newReport(config, withBootstrap)
	if err != nil {
		return usageError{err}
	}
	return r.print(cmd.OutOrStdout(), o.format)
}

const bootstrapHelp = `Print the bootstrap that proxy would start Envoy with, whole: with what ISTIO_BOOTSTRAP_OVERRIDE, customConfigFile and
the like make of it. Secrets that it holds are shown, as Envoy has to read them.

Exit codes: 0; 2 for a wrong configuration.`

func newBootstrapCommand() *cobra.Command {
	o := &bootstrapOptions{}
	c := &cobra.Command{
		Use:     "bootstrap [sidecar|router|waypoint]",
		Short:   "Print the bootstrap that proxy would start Envoy with",
		Long:    bootstrapHelp,
		Example: "  pilotfish-agent bootstrap\n  pilotfish-agent bootstrap router -o yaml\n  pilotfish-agent bootstrap --grpc",
		Args:    usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.bootstrap(cmd, args)
		},
	}
	o.addTo(c.Flags())
	c.Flags().StringVarP(&o.format, "output", "o", formatJSON, "json or yaml")
	c.Flags().BoolVar(&o.grpc, "grpc", false, "print the bootstrap of proxyless gRPC clients instead")
	return c
}

type bootstrapOptions struct {
	proxyOptions
	grpc bool
}

func (o *bootstrapOptions) bootstrap(cmd *cobra.Command, args []string) error {
	if o.format != formatJSON && o.format != formatYAML {
		return usagef("output format %q is not known; use json or yaml", o.format)
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
	if o.format == formatYAML {
		return printYAML(cmd.OutOrStdout(), text)
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}
