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

	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Name is the name of Istio's command. A program file with this name runs only this command.
const Name = "istio-iptables"

const help = `Redirect the traffic of this pod to its Envoy: install the rules that follow
from the options. The rules of an earlier run are replaced atomically, and no
packet bypasses the rules meanwhile. The flags are those of istio-iptables. Each
flag also has an environment variable: its name in capitals with underscores
(ISTIO_INBOUND_PORTS). Without options, no traffic is captured. In an injected
pod, the options are -b "*" -i "*" -d 15090,15021,15020.

Exit codes:
  0    done
  1    error; the previous rules were restored, and the last line describes it
  2    wrong flags or options; nothing was changed
  126  --run-validation has found traffic that is not captured`

// Command returns the command with its subcommands. An error of these commands may be an *ExitError.
func Command(p Process) *cobra.Command {
	a := &applyCommand{process: p}
	c := &cobra.Command{
		Use:     "iptables",
		Aliases: []string{Name},
		Short:   "Redirect the traffic of this pod to its Envoy",
		Long:    help,
		Example: `  pilotfish-agent iptables -b "*" -i "*" -d 15090,15021,15020
  pilotfish-agent iptables -b "*" -i "*" --dry-run
  pilotfish-agent iptables explain -i "*" --uid 1000 --to 10.2.3.4:443/tcp`,
		Args: usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.run(cmd) },
	}
	a.addTo(c.Flags())
	c.AddCommand(newShowCommand(p), newExplainCommand(p), newVerifyCommand(p), newTraceCommand(p), newCleanCommand(p))
	for _, sub := range append(c.Commands(), c) {
		sub.RunE = withSignals(sub.RunE)
		sub.Flags().SortFlags = false
	}
	return c
}

// withSignals cancels the command's context at the first SIGINT or SIGTERM, so that the command can clean up. A second
// signal terminates the process.
func withSignals(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		defer context.AfterFunc(ctx, stop)()
		cmd.SetContext(ctx)
		return run(cmd, args)
	}
}

// commonFlags are the flags of all commands that read options.
type commonFlags struct {
	process   Process
	config    string
	namespace string
	format    string
}

// addOutput adds the flags of commands that print options or rules. In these commands, -o selects the output format, so
// the option that has the shorthand -o in other commands has only its long name here. Shells suggest the formats.
func (c *commonFlags) addOutput(cmd *cobra.Command, formats ...string) {
	f := cmd.Flags()
	f.StringVarP(&c.format, "output", "o", "", "output format: json or yaml (default: text)")
	usage.SetCompletions(cmd, "output", formats...)
	c.addTo(f, "o")
	// These flags are accepted so that users can pass the same flags as to apply. They have no effect, because the
	// backend in use is detected.
	for _, name := range []string{"force-iptables-binary", "native-nftables"} {
		f.String(name, "", "accepted for compatibility with istio-iptables; has no effect")
		f.Lookup(name).NoOptDefVal = "true"
		_ = f.MarkHidden(name)
	}
	f.Lookup("force-iptables-binary").NoOptDefVal = ""
}

func (c *commonFlags) addTo(f *pflag.FlagSet, taken string) {
	f.StringVar(&c.config, "config", "", "file with options from --save or show -o yaml; the command reads them instead of environment variables")
	c.addNamespace(f)
	addOptions(f, taken)
}

func (c *commonFlags) addNamespace(f *pflag.FlagSet) {
	f.StringVar(&c.namespace, "network-namespace", "", "network namespace in which the command works: a file, or a name that 'ip netns' lists (default: the namespace of this process)")
}

// resolve returns the options and the rules that the options require.
func (c *commonFlags) resolve(f *pflag.FlagSet, space namespace) (*resolvedOptions, *iptables.RuleSet, error) {
	r := resolver{process: c.process, flags: f, namespace: space}
	if c.config != "" {
		var err error
		if r.saved, err = readSaved(c.config); err != nil {
			return nil, nil, err
		}
	}
	out, err := r.resolve()
	if err != nil {
		return nil, nil, err
	}
	rules, err := iptables.Compile(out.options)
	if err != nil {
		return nil, nil, usageError(err)
	}
	return out, rules, nil
}

func (c *commonFlags) openNamespace() (namespace, error) {
	name := c.namespace
	if name == "" {
		name = c.process.env("NETWORK_NAMESPACE")
	}
	n, err := openNamespace(name)
	if err != nil {
		return n, usageError(err)
	}
	return n, nil
}

// switchFlag is a flag of Istio's command that does not affect the rules. An environment variable can also set it.
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

// setFromEnvironment sets the flags that are missing on the command line from their environment variables.
func setFromEnvironment(f *pflag.FlagSet, p Process, list []switchFlag) error {
	for _, s := range list {
		variable := strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
		text := p.env(variable)
		if flag := f.Lookup(s.name); flag.Changed || text == "" || flag.Hidden {
			continue
		} else if err := flag.Value.Set(text); err != nil {
			return usagef("environment %s: %q: write %s", variable, text, usage.DescribeValue(flag))
		}
	}
	return nil
}

func outputFormatError(format string) error {
	if format != "" && strings.Trim(format, "0123456789,:-") == "" { // -o followed by ports is the option of apply
		return usagef("-o is the output format of this command; to exclude ports from capture, use --istio-local-outbound-ports-exclude")
	}
	return usagef("output format %q is not known; use json or yaml, or omit the flag for text", format)
}

func elapsed(began time.Time) string {
	return fmt.Sprint(time.Since(began).Round(10 * time.Microsecond))
}
