package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/jsonyaml"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

// report is the output of `config` and `proxy --dry-run`.
type report struct {
	Settings  []config.Setting `json:"settings,omitempty"`
	Warnings  []string         `json:"warnings,omitempty"`
	Bootstrap json.RawMessage  `json:"bootstrap,omitempty"`
}

func newReport(c *config.Config) (*report, error) {
	text, err := bootstrapJSON(c)
	return &report{Settings: c.Settings, Warnings: c.Warnings, Bootstrap: text}, err
}

// Output formats.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

func (r *report) print(w io.Writer, format string) error {
	switch format {
	case formatTable:
		return r.printTable(w)
	case formatJSON:
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n", text)
		return err
	case formatYAML:
		return r.printYAML(w)
	}
	return usagef("output format %q is not known; use table, json or yaml", format)
}

// printYAML prints the report as YAML with the field names of its JSON form.
func (r *report) printYAML(w io.Writer) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return jsonyaml.Write(w, text)
}

func (r *report) printTable(w io.Writer) error {
	f := terminal.Detect(w)
	t := f.NewTable("SETTING", "VALUE", "SOURCE")
	for _, s := range r.Settings {
		t.AddRow(s.Name, s.Value, s.Source)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, warning := range r.Warnings {
		if err := f.WriteText(w, fmt.Sprintf("\n%s: %s\n", f.Paint(terminal.Amber, "warning"), termtext.EscapeLines(warning))); err != nil {
			return err
		}
	}
	if r.Bootstrap == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "\nBOOTSTRAP\n%s\n", bytes.TrimSpace(r.Bootstrap))
	return err
}

// bootstrapJSON returns Envoy's bootstrap as indented JSON, with secrets masked.
func bootstrapJSON(c *config.Config) ([]byte, error) {
	return bootstrap.Render(c.BootstrapConfig())
}

// grpcBootstrap returns the xDS bootstrap for proxyless gRPC applications.
func grpcBootstrap(c *config.Config) ([]byte, error) {
	return bootstrap.GRPC(c.BootstrapConfig())
}
