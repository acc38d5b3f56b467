package redirect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/jsonyaml"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

const showHelp = `Show the options with their sources, and the rules that follow from them, each
with its reason. Nothing is changed. The output of -o yaml can be used with
explain --config, the output of -o nft with nft -f, and the output of
-o iptables with iptables-restore.

With --live, show the rules that are installed in the kernel.

Exit codes:
  0  success
  1  with --live: no rules are installed, or they cannot be read
  2  wrong flags or options
  3  with --live: this process lacks CAP_NET_ADMIN`

// report is the output of the command show, and the content of a saved configuration.
type report struct {
	Options  map[string]string `json:"options,omitempty"`
	Values   []optionValue     `json:"values,omitempty"`
	Warnings []string          `json:"warnings,omitempty"`
	Backend  string            `json:"backend,omitempty"`
	// Strange lists the rules in this program's tables or chains that this program would not create.
	Strange []string          `json:"strange,omitempty"`
	Rules   *iptables.RuleSet `json:"rules,omitempty"`
}

func newReport(r *resolvedOptions, rules *iptables.RuleSet) *report {
	out := &report{Options: map[string]string{}, Values: r.values, Warnings: r.options.Warnings(), Rules: rules}
	for _, v := range r.values {
		out.Options[v.Name] = v.Value
	}
	return out
}

func (r *report) encodeJSON() ([]byte, error) {
	var b bytes.Buffer
	err := encodeJSON(&b, r)
	return b.Bytes(), err
}

// encodeJSON writes indented JSON without escaping <, > and &.
func encodeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printAs writes v as JSON or YAML to w. It returns an error if format is neither.
func printAs(w io.Writer, format string, v any) error {
	switch format {
	case "json":
		return encodeJSON(w, v)
	case "yaml":
		var b bytes.Buffer
		if err := encodeJSON(&b, v); err != nil {
			return err
		}
		return jsonyaml.Write(w, b.Bytes())
	}
	return outputFormatError(format)
}

func newShowCommand(p Process) *cobra.Command {
	c := &commonFlags{process: p}
	var live bool
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the options and the resulting rules, each with its reason",
		Long:    showHelp,
		Example: "  pilotfish-agent iptables show -b \"*\" -i \"*\"\n  pilotfish-agent iptables show --live -o json",
		Args:    usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			space, err := c.openNamespace()
			if err != nil {
				return err
			}
			defer space.close()
			options, rules, err := c.resolve(cmd.Flags(), space)
			if err != nil {
				return err
			}
			r := newReport(options, rules)
			if live {
				if r, err = readLiveReport(cmd, p, space); err != nil {
					return err
				}
			}
			return r.print(cmd.OutOrStdout(), c.format)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "show the rules that are installed in the kernel, instead of the rules that follow from the options")
	c.addOutput(cmd, "json", "yaml", formatNFT, formatIPTables)
	return cmd
}

// readLiveReport reads the installed rules from the kernel and builds the report from them.
func readLiveReport(cmd *cobra.Command, p Process, space namespace) (*report, error) {
	if err := p.checkPrivileges("--live"); err != nil {
		return nil, &ExitError{err, exitNotChecked}
	}
	b, err := newBackend(space, backends.Auto, newLogger(cmd.ErrOrStderr(), false, ""))
	if err != nil {
		return nil, err
	}
	in, err := b.Read(cmd.Context())
	if err != nil {
		return nil, err
	}
	if in.Rules == nil {
		return nil, errNoRules
	}
	iptables.SetReasons(in.Rules)
	return &report{Backend: b.Name(), Rules: in.Rules, Strange: in.Strange}, nil
}

var errNoRules = errors.New("no rules are installed in this namespace: traffic is not redirected")

func (r *report) print(w io.Writer, format string) error {
	switch format {
	case "":
		return r.printText(w)
	case formatNFT, formatIPTables:
		text, err := render(r.Rules, format)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		return err
	}
	return printAs(w, format, r)
}

func (r *report) printText(w io.Writer) error {
	f := terminal.Detect(w)
	if len(r.Values) > 0 {
		t := f.NewTable("OPTION", "VALUE", "SOURCE")
		for _, v := range r.Values {
			t.AddRow(v.Name, v.Value, v.Source)
		}
		if err := t.Write(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	var b strings.Builder
	for _, text := range r.Warnings {
		fmt.Fprintf(&b, "%s: %s\n\n", f.Paint(terminal.Amber, "warning"), termtext.EscapeLines(text))
	}
	if r.Backend != "" {
		fmt.Fprintf(&b, "installed by %s, for ", r.Backend)
	}
	b.WriteString(termtext.EscapeLines(r.Rules.Prose()))
	for _, text := range r.Strange {
		fmt.Fprintf(&b, "\n%s: %s\n", f.Paint(terminal.Red, "not ours"), termtext.EscapeLines(text))
	}
	return f.WriteText(w, b.String())
}

// render returns the rule set in one of the output formats.
func render(rules *iptables.RuleSet, format string) (string, error) {
	switch format {
	case formatProse:
		return rules.Prose(), nil
	case formatNFT:
		return nftText(rules)
	case formatIPTables:
		return iptablesText(rules)
	}
	return "", usagef("format %q is not known; use nft, iptables or prose", format)
}

func iptablesText(rules *iptables.RuleSet) (string, error) {
	var b strings.Builder
	for _, f := range []struct {
		family  iptables.Families
		program string
	}{{iptables.IPv4, "iptables-restore"}, {iptables.IPv6, "ip6tables-restore"}} {
		text, err := xtables.Text(rules, f.family)
		if err != nil {
			return "", err
		}
		if text != "" {
			fmt.Fprintf(&b, "# %s --noflush\n%s", f.program, text)
		}
	}
	b.WriteString(routingText(rules))
	return b.String(), nil
}

// routingText returns the ip commands for the routing rules and addresses, as comments in a shell script.
func routingText(rules *iptables.RuleSet) string {
	r := rules.Routing
	if r == nil {
		return ""
	}
	var b strings.Builder
	for _, f := range []struct {
		family iptables.Families
		flag   string
	}{{iptables.IPv4, "-4"}, {iptables.IPv6, "-6"}} {
		if r.Mark != 0 && rules.Families&f.family != 0 {
			fmt.Fprintf(&b, "# ip %s rule add priority %d fwmark %d lookup %d\n# ip %[1]s route add local default dev lo table %[4]d\n", f.flag, r.Priority, r.Mark, r.Table)
		}
	}
	for _, a := range r.LoopbackAddresses {
		fmt.Fprintf(&b, "# ip addr add %s dev lo\n", a)
	}
	return b.String()
}
