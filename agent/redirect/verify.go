package redirect

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/verify"
)

const verifyHelp = `Verify that traffic is redirected correctly: compare the installed rules and
their order with the rules that follow from the options, and then send packets
of every kind and check where each arrives. Each difference is reported with its
effect on packets.

The packets use a temporary virtual network, which is removed afterwards. They
do not leave the network namespace and do not reach its processes, not even a
running Envoy. The namespace does not need a network connection.

With --live, the options are ignored: packets verify that the installed rules
have their intended effect.

Exit codes:
  0    the redirection is correct
  1    there are differences; the output lists them with their effect
  2    wrong flags or options
  3    the verification was not possible`

const exitNotChecked = 3

// verifyCommand compares the installed rules with the options and tests them with packets.
type verifyCommand struct {
	commonFlags
	live, all, noPackets bool
	timeout              time.Duration
}

func newVerifyCommand(p Process) *cobra.Command {
	v := &verifyCommand{commonFlags: commonFlags{process: p}, timeout: time.Second}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify with test packets that traffic is redirected correctly",
		Long:  verifyHelp,
		Example: `  pilotfish-agent iptables verify -b "*" -i "*" -d 15090,15021,15020
  pilotfish-agent iptables verify --live --all
  pilotfish-agent iptables verify --live --network-namespace /proc/1234/ns/net`,
		Args: usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	f := cmd.Flags()
	f.BoolVar(&v.live, "live", false, "ignore the options, and verify the installed rules with packets")
	f.BoolVar(&v.all, "all", false, "show every test packet, including packets with the expected result")
	f.BoolVar(&v.noPackets, "no-packets", false, "compare the installed rules only; send no test packets")
	f.DurationVar(&v.timeout, "probe-timeout", v.timeout, "maximum time to wait for each test packet")
	v.addOutput(cmd, "json", "yaml")
	return cmd
}

func (v *verifyCommand) run(cmd *cobra.Command) error {
	if v.format != "" && v.format != "json" && v.format != "yaml" {
		return outputFormatError(v.format)
	}
	space, err := v.openNamespace()
	if err != nil {
		return err
	}
	defer space.close()
	_, rules, err := v.resolve(cmd.Flags(), space)
	if err != nil {
		return err
	}
	r, err := v.verify(cmd, space, rules)
	if err != nil {
		return &ExitError{err, exitNotChecked}
	}
	if err := v.print(cmd.OutOrStdout(), r); err != nil {
		return err
	}
	if !r.OK() {
		return &ExitError{fmt.Errorf("the redirection is wrong: %s in the rules, %s with a wrong destination; %s",
			verify.FormatCount(len(r.Differences), "difference"), verify.FormatCount(len(r.Failed()), "packet"), remedy(r)), 1}
	}
	return nil
}

// remedy returns what the user can do after a failed verification.
func remedy(r *verify.Report) string {
	if len(r.Differences) > 0 {
		return "run `iptables` with the same options to restore the rules"
	}
	return "the rules are correct, so something else interferes: other rules (see `iptables trace`), routing, or an interface that is down (`ip link set lo up`)"
}

func (v *verifyCommand) verify(cmd *cobra.Command, space namespace, rules *iptables.RuleSet) (*verify.Report, error) {
	if err := v.process.checkPrivileges("verify"); err != nil {
		return nil, err
	}
	log := newLogger(cmd.ErrOrStderr(), false, "")
	b, err := newBackend(space, backends.Auto, log)
	if err != nil {
		return nil, err
	}
	if v.live {
		live, err := readLiveReport(cmd, v.process, space)
		if errors.Is(err, errNoRules) {
			return verify.Run(cmd.Context(), verify.Config{Backend: b, Want: rules, NetNS: space.fd(), NoPackets: true, Log: log})
		}
		if err != nil {
			return nil, err
		}
		rules = live.Rules
	}
	return verify.Run(cmd.Context(), verify.Config{Backend: b, Want: rules, NetNS: space.fd(), NoPackets: v.noPackets, Timeout: v.timeout, Log: log})
}

func (v *verifyCommand) print(w io.Writer, r *verify.Report) error {
	if v.format != "" {
		return printAs(w, v.format, r)
	}
	text := r.String()
	if v.all {
		text = r.Details()
	}
	f := terminal.Detect(w)
	return f.WriteText(w, paintReport(f, termtext.EscapeLines(text)))
}

// reportColours are the colours of the words with which lines of a report begin.
var reportColours = []struct {
	prefix, word string
	colour       terminal.Colour
}{
	{"  ", "WRONG", terminal.Red}, {"  ", "ok", terminal.Green}, {"", "note", terminal.Dim}, {"", "unproven", terminal.Amber},
}

// paintReport adds colours to the text of a report.
func paintReport(f terminal.Format, text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		for _, c := range reportColours {
			if rest, found := strings.CutPrefix(line, c.prefix+c.word+" "); found {
				line = c.prefix + f.Paint(c.colour, c.word) + " " + rest
				break
			}
		}
		b.WriteString(line)
	}
	return b.String()
}
