package redirect

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
	"github.com/pilotfish-mesh/pilotfish/iptables/verify"
)

const verifyHelp = `Prove that traffic is redirected as it should be: read back what the kernel has, compare it with what the options come
to, order included, and then send packets of every kind and see where each arrives. Every difference is told with what
packets suffer of it.

The packets are of a network that lasts as long as the tests: none of them leaves the namespace, which needs no network
of its own, and no process of it sees one, a running Envoy neither. Nothing is left behind.

With --live the rules in force are taken as what should be, whatever the options are, and packets show whether they do
what they say.

Exit codes:
  0    all is as it should be
  1    it is not; the output says what, and with what consequence
  2    wrong flags or options
  3    it could not be looked at`

const exitUnseen = 3

// verification is one run of the command.
type verification struct {
	common
	live, all, quick bool
	timeout          time.Duration
}

func newVerifyCommand(p Process) *cobra.Command {
	v := &verification{common: common{process: p}, timeout: time.Second}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove with packets that traffic is redirected as it should be",
		Long:  verifyHelp,
		Example: `  pilotfish-agent iptables verify -b "*" -i "*" -d 15090,15021,15020
  pilotfish-agent iptables verify --live --all
  pilotfish-agent iptables verify --config rules.json --network-namespace /proc/1234/ns/net --output json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	f := cmd.Flags()
	f.BoolVar(&v.live, "live", false, "prove the rules in force, whatever the options")
	f.BoolVar(&v.all, "all", false, "show every packet, also those that arrive where they should")
	f.BoolVar(&v.quick, "no-packets", false, "compare the rules only")
	f.DurationVar(&v.timeout, "probe-timeout", v.timeout, "how long a packet may take")
	v.addOutput(f)
	return cmd
}

func (v *verification) run(cmd *cobra.Command) error {
	if v.format != "" && v.format != "json" && v.format != "yaml" {
		return formatError(v.format)
	}
	space, err := v.open()
	if err != nil {
		return err
	}
	defer space.close()
	_, rules, err := v.resolve(cmd.Flags(), space)
	if err != nil {
		return err
	}
	r, err := v.look(cmd, space, rules)
	if err != nil {
		return &ExitError{err, exitUnseen}
	}
	if err := v.print(cmd.OutOrStdout(), r); err != nil {
		return err
	}
	if !r.OK() {
		return &ExitError{fmt.Errorf("the redirection is not what it should be: %s in the rules, %s gone astray; %s",
			verify.Count(len(r.Differences), "difference"), verify.Count(len(r.Failed()), "packet"), remedy(r)), 1}
	}
	return nil
}

// remedy says what to do.
func remedy(r *verify.Report) string {
	if len(r.Differences) > 0 {
		return "`iptables` with the same options puts our rules right"
	}
	return "our rules are right, so that something else is in the way: rules of others (`iptables trace` shows which a packet meets), routing, or an interface that is down (`ip link set lo up`)"
}

func (v *verification) look(cmd *cobra.Command, space namespace, rules *iptables.RuleSet) (*verify.Report, error) {
	if err := v.process.checkPrivileges("verify"); err != nil {
		return nil, err
	}
	log := logger(cmd.ErrOrStderr(), false, "")
	b, err := newBackend(space, backends.Auto, log)
	if err != nil {
		return nil, err
	}
	if v.live {
		live, err := liveReport(cmd, v.process, space)
		if errors.Is(err, errNothing) {
			return verify.Run(cmd.Context(), verify.Config{Backend: b, Want: rules, NetNS: space.fd(), NoPackets: true, Log: log})
		}
		if err != nil {
			return nil, err
		}
		rules = live.Rules
	}
	return verify.Run(cmd.Context(), verify.Config{Backend: b, Want: rules, NetNS: space.fd(), NoPackets: v.quick, Timeout: v.timeout, Log: log})
}

func (v *verification) print(w io.Writer, r *verify.Report) error {
	if v.format != "" {
		return printAs(w, v.format, r)
	}
	text := r.String()
	if v.all {
		text = r.Long()
	}
	_, err := io.WriteString(w, text)
	return err
}
