package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// analyzeOptions are the flags of `pilotfish analyze`.
type analyzeOptions struct {
	topology, meshConfig, namespace string
	severity, failOn, output        string
	suppress                        []string
	codes                           bool
	explain                         string
	endpoints                       registry.EndpointPolicy
}

func newAnalyzeCommand() *cobra.Command {
	var o analyzeOptions
	c := &cobra.Command{
		Use:   "analyze DIR|FILE|-...",
		Short: "Find problems in Istio and Kubernetes documents without a mesh",
		Long: `Find problems in Istio and Kubernetes documents. The command reads the documents
from directories (recursively), files, or standard input (-). It checks each
document, and all of them together, as the control plane does. It prints each
problem with its position, its meaning and a remedy. It starts nothing and
queries no cluster.

Each finding has a stable code: --codes lists all codes, and --explain PF0202
explains one. To suppress findings about a document, add the annotation
pilotfish.dev/suppress: "PF0202, PF0301" (or "*") to it, or use --suppress.
Errors cannot be suppressed: the control plane does not use a document with an
error.

Exit codes:
  0  no finding has the severity of --fail-on (default: --severity) or higher
  1  a finding has the severity of --fail-on or higher
  2  wrong flags, or a file does not exist`,
		Example: `  pilotfish analyze ./config
  pilotfish analyze -f mesh.yaml            # documents and workloads of a mesh
  kustomize build . | pilotfish analyze -   # standard input
  pilotfish analyze ./config -o json --severity info
  pilotfish analyze ./config --suppress 'PF0301=AuthorizationPolicy shop/*'`,
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args) },
	}
	f := c.Flags()
	f.StringVarP(&o.topology, "file", "f", "", "analyze the documents of this topology file, with its mesh configuration and workloads")
	f.StringVar(&o.meshConfig, "mesh-config", "", "file with Istio's MeshConfig, in YAML")
	f.StringVarP(&o.namespace, "namespace", "n", "default", "namespace of documents that do not specify one")
	f.StringVar(&o.severity, "severity", "warning", "show only findings of this severity or higher: error, warning or info")
	f.StringVar(&o.failOn, "fail-on", "", "exit with status 1 if a finding has this severity or a higher one: error, warning, info or never (default: --severity)")
	f.StringVarP(&o.output, "output", "o", "text", "output format: text, lines (one finding per line), json or yaml")
	f.StringArrayVar(&o.suppress, "suppress", nil, "suppress findings with this code: CODE, or 'CODE=Kind namespace/name' for some documents, where * matches any text; may be repeated")
	f.BoolVar(&o.codes, "codes", false, "list all finding codes, then exit")
	controlplane.EndpointFlags(f, &o.endpoints)
	f.StringVar(&o.explain, "explain", "", "print the meaning and the remedy of this finding code, then exit")
	usage.SetExclusive(c, "file", "mesh-config")
	usage.SetCompletions(c, "severity", "error", "warning", "info")
	usage.SetCompletions(c, "fail-on", "error", "warning", "info", "never")
	usage.SetCompletions(c, "output", "text", "lines", "json", "yaml")
	usage.SetCompletions(c, "explain", codeNames()...)
	usage.SetCompletions(c, "suppress", codeNames()...)
	return c
}

func codeNames() []string {
	var names []string
	for _, i := range config.Codes() {
		names = append(names, string(i.Code)+"\t"+i.Name)
	}
	return names
}

func (o analyzeOptions) run(c *cobra.Command, args []string) error {
	out := c.OutOrStdout()
	switch {
	case o.codes:
		return o.list(out)
	case o.explain != "":
		return o.explainCode(out)
	}
	failOn, err := o.check()
	if err != nil {
		return usageError{err}
	}
	cfg, err := o.config(c, args)
	if err != nil {
		return usageError{err}
	}
	report, err := analysis.Analyze(cfg)
	if err != nil {
		return usageError{err}
	}
	failed := failOn != "never" && report.AtLeast(config.Severity(failOn))
	report.FilterSeverity(config.Severity(o.severity))
	if err := o.write(out, report); err != nil {
		return err
	}
	if failed {
		return errQuiet
	}
	return nil
}

func (o analyzeOptions) check() (failOn string, err error) {
	severities := []string{"error", "warning", "info"}
	if !slices.Contains(severities, o.severity) {
		return "", fmt.Errorf("--severity %q: use error, warning or info", o.severity)
	}
	if o.failOn == "" {
		return o.severity, o.checkOutput()
	}
	if !slices.Contains(append(severities, "never"), o.failOn) {
		return "", fmt.Errorf("--fail-on %q: use error, warning, info or never", o.failOn)
	}
	return o.failOn, o.checkOutput()
}

func (o analyzeOptions) checkOutput() error {
	if !slices.Contains([]string{"text", "lines", "json", "yaml"}, o.output) {
		return fmt.Errorf("--output %q: use text, lines, json or yaml", o.output)
	}
	return nil
}

func (o analyzeOptions) config(c *cobra.Command, args []string) (analysis.Config, error) {
	cfg := analysis.Config{}
	if err := o.endpoints.Check(); err != nil {
		return cfg, err
	}
	if o.topology != "" {
		t, err := topology.Load(o.topology)
		if err != nil {
			return cfg, err
		}
		cfg = topologyDocuments(t, o.endpoints)
	} else {
		cfg.MeshFile, cfg.Endpoints = o.meshConfig, o.endpoints
	}
	cfg.Paths, cfg.Stdin, cfg.DefaultNamespace = append(args, cfg.Paths...), c.InOrStdin(), o.namespace
	for _, text := range o.suppress {
		s, err := analysis.ParseSuppression(text)
		if err != nil {
			return cfg, err
		}
		cfg.Suppress = append(cfg.Suppress, s)
	}
	if len(cfg.Paths) == 0 {
		return cfg, errors.New("nothing to analyze: name directories or files, - for standard input, or a topology file with -f")
	}
	return cfg, nil
}

// topologyDocuments returns the configuration to analyze the documents and workloads of t. Endpoints may use the
// networks and socket paths of t, and those in more.
func topologyDocuments(t *topology.Topology, more registry.EndpointPolicy) analysis.Config {
	endpoints := mesh.EndpointPolicy(t, "", "", more.AllowUnix)
	endpoints.AllowNetworks = more.AllowNetworks
	if t.Network.IsValid() {
		endpoints.AllowNetworks = append(endpoints.AllowNetworks, t.Network)
	}
	return analysis.Config{
		Paths: t.Config, Mesh: t.Mesh, MeshFile: t.MeshFile, MeshProblems: t.MeshProblems, Stores: []config.Store{t.Registry()}, Endpoints: endpoints,
	}
}

// writeReport writes a report as text, with colours on a terminal.
func writeReport(out io.Writer, r *analysis.Report) error {
	f := terminal.Detect(out)
	return f.WriteText(out, r.Text(f))
}

func (o analyzeOptions) write(out io.Writer, r *analysis.Report) error {
	switch o.output {
	case "lines":
		return r.WriteLines(out)
	case "text":
		return writeReport(out, r)
	}
	return printAs(out, r, o.output)
}

func (o analyzeOptions) list(out io.Writer) error {
	if o.output == "json" || o.output == "yaml" {
		return printAs(out, config.Codes(), o.output)
	}
	table := terminal.Detect(out).NewTable()
	for _, i := range config.Codes() {
		table.AddRow(string(i.Code), i.Name, i.Meaning)
	}
	return table.Write(out)
}

func (o analyzeOptions) explainCode(out io.Writer) error {
	info, ok := config.ExplainCode(o.explain)
	if !ok {
		return usageError{fmt.Errorf("%q is not a finding code: --codes lists all codes", o.explain)}
	}
	if o.output == "json" || o.output == "yaml" {
		return printAs(out, info, o.output)
	}
	f := terminal.Detect(out)
	return f.WriteText(out, fmt.Sprintf("%s: %s\n\n%s\n\n%s\n", f.Paint(terminal.Bold, string(info.Code)), info.Name, info.Meaning, info.Remedy))
}
