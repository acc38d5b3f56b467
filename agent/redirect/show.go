package redirect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/jsonyaml"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/xt"
)

const showHelp = `Show the options with where each value comes from, and the rules that they come to, each with its reason. Nothing is
touched. -o yaml is also a configuration for explain --config; -o nft and -o iptables are what those programs read.

With --live it is what the kernel has.`

// report is what show prints, and what is saved.
type report struct {
	Options  map[string]string `json:"options,omitempty"`
	Values   []value           `json:"values,omitempty"`
	Warnings []string          `json:"warnings,omitempty"`
	Backend  string            `json:"backend,omitempty"`
	Strange  []string          `json:"strange,omitempty"`
	Rules    *iptables.RuleSet `json:"rules,omitempty"`
}

func newReport(r *resolved, rules *iptables.RuleSet) *report {
	out := &report{Options: map[string]string{}, Values: r.values, Warnings: r.options.Warnings(), Rules: rules}
	for _, v := range r.values {
		out.Options[v.Name] = v.Value
	}
	return out
}

func (r *report) json() ([]byte, error) {
	var b bytes.Buffer
	err := encode(&b, r)
	return b.Bytes(), err
}

// encode leaves <, > and & as they are.
func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printAs writes JSON or YAML.
func printAs(w io.Writer, format string, v any) error {
	switch format {
	case "json":
		return encode(w, v)
	case "yaml":
		var b bytes.Buffer
		if err := encode(&b, v); err != nil {
			return err
		}
		return jsonyaml.Write(w, b.Bytes())
	}
	return formatError(format)
}

func newShowCommand(p Process) *cobra.Command {
	c := &common{process: p}
	var live bool
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the options and the rules that they come to, each with its reason",
		Long:    showHelp,
		Example: "  pilotfish-agent iptables show -b \"*\" -i \"*\"\n  pilotfish-agent iptables show --live -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			space, err := c.open()
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
				if r, err = liveReport(cmd, p, space); err != nil {
					return err
				}
			}
			return r.print(cmd.OutOrStdout(), c.format)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "show what is in force, as the kernel tells it")
	c.addOutput(cmd.Flags())
	return cmd
}

// liveReport is of what is in force.
func liveReport(cmd *cobra.Command, p Process, space namespace) (*report, error) {
	if err := p.checkPrivileges("--live"); err != nil {
		return nil, err
	}
	b, err := newBackend(space, backends.Auto, logger(cmd.ErrOrStderr(), false, ""))
	if err != nil {
		return nil, err
	}
	in, err := b.Read(cmd.Context())
	if err != nil {
		return nil, err
	}
	if in.Rules == nil {
		return nil, errNothing
	}
	iptables.GiveReasons(in.Rules)
	return &report{Backend: b.Name(), Rules: in.Rules, Strange: in.Strange}, nil
}

var errNothing = errors.New("nothing of ours is in force in this namespace: traffic is not redirected")

func (r *report) print(w io.Writer, format string) error {
	switch format {
	case "":
		return r.text(w)
	case formatNFT, formatIPTables:
		text, err := render(r.Rules, format)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		return err
	}
	return printAs(w, format, r)
}

func (r *report) text(w io.Writer) error {
	if len(r.Values) > 0 {
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "OPTION\tVALUE\tSOURCE")
		for _, v := range r.Values {
			fmt.Fprintf(t, "%s\t%s\t%s\n", v.Name, orDash(v.Value), v.Source)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, text := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n\n", text)
	}
	if r.Backend != "" {
		fmt.Fprintf(w, "in force by %s, for ", r.Backend)
	}
	fmt.Fprint(w, r.Rules.Prose())
	for _, text := range r.Strange {
		fmt.Fprintf(w, "\nnot ours: %s\n", text)
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// render is the rule set in the words of a program.
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
		text, err := xt.Text(rules, f.family)
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

// routingText is what routing needs, as commands in comments.
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
