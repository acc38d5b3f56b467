package redirect

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Name is what Istio's agent calls the command; a binary of that name is this command alone.
const Name = "istio-iptables"

const help = `Steer the traffic of this pod into its Envoy: put the rules that the options come to in force, in place of those that
were there before. It is done wholly or not at all, and no packet escapes meanwhile. The flags are those of
istio-iptables; each also has a variable of the environment, its name in capitals with underscores (ISTIO_INBOUND_PORTS).
Nothing is captured without options: an injected pod has -b "*" -i "*" -d 15090,15021,15020.

Exit codes:
  0    done
  1    something failed, and the former state is back; the last line says what
  2    wrong flags or options; nothing was touched
  126  --run-validation: traffic is not captured as it should be`

// Command is the command with those below it. Its errors may be an *ExitError.
func Command(p Process) *cobra.Command {
	a := &apply{process: p}
	c := &cobra.Command{
		Use:     "iptables",
		Aliases: []string{Name},
		Short:   "Steer the traffic of this pod into its Envoy",
		Long:    help,
		Example: `  pilotfish-agent iptables -b "*" -i "*" -d 15090,15021,15020
  pilotfish-agent iptables -b "*" -i "*" --dry-run
  pilotfish-agent iptables explain -b "*" -i "*" --from 10.0.0.5 --uid 1000 --to 10.2.3.4:443/tcp`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.run(cmd) },
	}
	a.addTo(c.Flags())
	c.AddCommand(newShowCommand(p), newExplainCommand(p), newVerifyCommand(p), newTraceCommand(p), newCleanCommand(p))
	for _, sub := range append(c.Commands(), c) {
		sub.RunE = endedBySignals(sub.RunE)
		sub.Flags().SortFlags = false
		sub.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
			return usagef("%w (`%s --help` lists what there is)", err, c.CommandPath())
		})
	}
	return c
}

// endedBySignals has a command end in order when it is interrupted: what was begun is undone, or told. A second signal ends it
// at once.
func endedBySignals(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		defer context.AfterFunc(ctx, stop)()
		cmd.SetContext(ctx)
		return run(cmd, args)
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%q is neither a flag nor a command here (`%s --help` lists what there is)", args[0], cmd.CommandPath())
	}
	return nil
}

// common are flags of every command that looks at options.
type common struct {
	process   Process
	config    string
	namespace string
	format    string
}

// addOutput adds what commands that print have; -o is theirs, and the option of that shorthand has its long name alone.
func (c *common) addOutput(f *pflag.FlagSet) {
	f.StringVarP(&c.format, "output", "o", "", "json or yaml instead of text")
	c.addTo(f, "o")
	// So that the options of apply can be given here as they are: who has the rules in force is found out.
	for _, name := range []string{"force-iptables-binary", "native-nftables"} {
		f.String(name, "", "without effect here")
		f.Lookup(name).NoOptDefVal = "true"
		_ = f.MarkHidden(name)
	}
	f.Lookup("force-iptables-binary").NoOptDefVal = ""
}

func (c *common) addTo(f *pflag.FlagSet, taken string) {
	f.StringVar(&c.config, "config", "", "saved configuration (of --save, or of show -o yaml) in place of the environment")
	c.addNamespace(f)
	addOptions(f, taken)
}

func (c *common) addNamespace(f *pflag.FlagSet) {
	f.StringVar(&c.namespace, "network-namespace", "", "network namespace to work in: a file, or a name as ip netns has it (default: this process's)")
}

// resolve gives the options, and their rules.
func (c *common) resolve(f *pflag.FlagSet, space namespace) (*resolved, *iptables.RuleSet, error) {
	r := resolver{process: c.process, flags: f, space: space}
	if c.config != "" {
		var err error
		if r.saved, err = read(c.config); err != nil {
			return nil, nil, err
		}
	}
	out, err := r.resolve()
	if err != nil {
		return nil, nil, err
	}
	rules, err := iptables.Compile(out.options)
	if err != nil {
		return nil, nil, usage(err)
	}
	return out, rules, nil
}

func (c *common) open() (namespace, error) {
	name := c.namespace
	if name == "" {
		name = c.process.env("NETWORK_NAMESPACE")
	}
	n, err := openNamespace(name)
	if err != nil {
		return n, usage(err)
	}
	return n, nil
}

// switchFlag is a flag of the contract without bearing on rules, with its variable.
type switchFlag struct {
	name, short, help string
	to                any // *bool, *string, *uint16 or *time.Duration
	hidden            bool
}

func addSwitches(f *pflag.FlagSet, list []switchFlag) {
	for _, s := range list {
		switch to := s.to.(type) {
		case *bool:
			f.BoolVarP(to, s.name, s.short, *to, s.help)
		case *string:
			f.StringVarP(to, s.name, s.short, *to, s.help)
		case *uint16:
			f.Uint16VarP(to, s.name, s.short, *to, s.help)
		case *time.Duration:
			f.DurationVarP(to, s.name, s.short, *to, s.help)
		}
		f.Lookup(s.name).Hidden = s.hidden
	}
}

// fromEnvironment sets the flags that are not on the command line and have a variable.
func fromEnvironment(f *pflag.FlagSet, p Process, list []switchFlag) error {
	for _, s := range list {
		variable := strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
		text := p.env(variable)
		if flag := f.Lookup(s.name); flag.Changed || text == "" || flag.Hidden {
			continue
		} else if err := flag.Value.Set(text); err != nil {
			return usagef("environment %s: %q: %w", variable, text, err)
		}
	}
	return nil
}

func formatError(format string) error {
	if format != "" && strings.Trim(format, "0123456789,:-") == "" { // -o of the command that applies
		return usagef("-o is the format of the output here; ports that are not captured are --istio-local-outbound-ports-exclude")
	}
	return usagef("output format %q is not known; use json or yaml, or leave it out for text", format)
}

func took(began time.Time) string { return fmt.Sprint(time.Since(began).Round(10 * time.Microsecond)) }
