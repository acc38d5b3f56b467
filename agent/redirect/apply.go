package redirect

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

// applyCommand is the root command, which applies the rules.
type applyCommand struct {
	commonFlags
	process Process
	// Flags that are the same as in Istio's command.
	dryRun, skip, validate, reconcile, cleanup, force, native, cni bool
	binary                                                         string
	probePort                                                      uint16
	probeTimeout                                                   time.Duration
	// Flags that Istio's command does not have.
	save, dryRunFormat string
	// Flags of other Istio releases. The command accepts them and ignores most of them.
	logJSON, restoreFormat, trace, nsenter bool
	logLevel, ignored                      string
	switches                               []switchFlag
}

func (a *applyCommand) addTo(f *pflag.FlagSet) {
	a.commonFlags.process = a.process
	a.probePort, a.probeTimeout, a.restoreFormat = 15002, 5*time.Second, true
	a.switches = []switchFlag{
		{"dry-run", "n", "print the rules that would be installed, and exit without a change", &a.dryRun, false},
		{"skip-rule-apply", "", "install no rules; with --run-validation, check with test packets whether traffic is already captured", &a.skip, false},
		{"run-validation", "", "after the installation, check with test packets that traffic is captured; if it is not, exit with code 126", &a.validate, false},
		{"iptables-probe-port", "", "port for test packets of Istio's iptables; accepted for compatibility, has no effect", &a.probePort, false},
		{"probe-timeout", "", "maximum time that --run-validation waits for each test packet", &a.probeTimeout, false},
		{"cleanup-only", "", "remove the rules, as the command clean does", &a.cleanup, false},
		{"native-nftables", "", "require nftables; by default iptables is used if the kernel has no nftables", &a.native, false},
		{"force-iptables-binary", "", "use the installed iptables programs of one flavour, legacy or nft, instead of nftables", &a.binary, false},
		{"reconcile", "", "replace existing rules; accepted for compatibility, because existing rules are always replaced", &a.reconcile, false},
		{"force-apply", "", "install the rules even if they are installed; accepted for compatibility, because this is always done", &a.force, false},
		{"cni-mode", "", "accepted for compatibility with istio-iptables; has no effect", &a.cni, false},
		{"restore-format", "f", "", &a.restoreFormat, true},
		{"iptables-trace-logging", "", "", &a.trace, true},
		{"host-nsenter-exec", "", "", &a.nsenter, true},
		{"log_as_json", "", "", &a.logJSON, true},
		{"log_output_level", "", "", &a.logLevel, true},
		{"log_target", "", "", &a.ignored, true},
		{"log_caller", "", "", &a.ignored, true},
		{"log_stacktrace_level", "", "", &a.ignored, true},
		{"vklog", "", "", &a.ignored, true},
	}
	addSwitches(f, a.switches)
	f.StringVar(&a.save, "save", "", "write the options to this file, which --config of other commands reads")
	f.StringVar(&a.dryRunFormat, "dry-run-format", "", "format of --dry-run: nft (input of nft -f), iptables (input of iptables-restore) or prose (default: the input format of the backend)")
	a.commonFlags.addTo(f, "")
}

func (a *applyCommand) run(cmd *cobra.Command) error {
	if err := setFromEnvironment(cmd.Flags(), a.process, a.switches); err != nil {
		return err
	}
	if !slices.Contains([]string{"", formatNFT, formatIPTables, formatProse}, a.dryRunFormat) {
		return usagef("--dry-run-format %q: use nft, iptables or prose", a.dryRunFormat)
	}
	log := newLogger(cmd.ErrOrStderr(), a.logJSON, a.logLevel)
	choice, err := backends.ParseChoice(a.binary, a.native)
	if err != nil {
		return usageError(err)
	}
	space, err := a.openNamespace()
	if err != nil {
		return err
	}
	defer space.close()
	if a.cleanup {
		return cleanRules(cmd.Context(), a.process, space, choice, log, a.dryRun)
	}
	options, rules, err := a.resolve(cmd.Flags(), space)
	if err != nil {
		return err
	}
	for _, w := range options.options.Warnings() {
		log.Warn(w)
	}
	if a.dryRun {
		return a.print(cmd.OutOrStdout(), rules, choice)
	}
	return a.applyRules(cmd.Context(), log, space, choice, options, rules)
}

func (a *applyCommand) applyRules(ctx context.Context, log *slog.Logger, space namespace, choice backends.Choice, options *resolvedOptions, rules *iptables.RuleSet) error {
	commit, discard, err := a.prepareSave(options)
	if err != nil {
		return err
	}
	defer discard()
	if !a.skip {
		if err := a.process.checkPrivileges("--istio-inbound-interception-mode " + options.options.Get("istio-inbound-interception-mode")); err != nil {
			return err
		}
		if err := applyRuleSet(ctx, log, space, choice, rules); err != nil {
			return err
		}
	}
	if err := commit(); err != nil || !a.validate {
		return err
	}
	return a.checkTraffic(ctx, log, space, rules)
}

// prepareSave writes the options to a temporary file for --save; commit renames it to the file's name. The command must
// not apply options that it cannot save, nor save options that it cannot apply. It therefore writes the file before it
// applies the rules, and renames it afterwards.
func (a *applyCommand) prepareSave(options *resolvedOptions) (commit func() error, discard func(), err error) {
	if a.save == "" {
		return func() error { return nil }, func() {}, nil
	}
	text, err := newReport(options, nil).encodeJSON()
	if err != nil {
		return nil, nil, err
	}
	d, err := newPendingFile(a.save, text)
	if err != nil {
		return nil, nil, err
	}
	return d.commit, d.discard, nil
}

func applyRuleSet(ctx context.Context, log *slog.Logger, space namespace, choice backends.Choice, rules *iptables.RuleSet) error {
	began := time.Now()
	b, err := newBackend(space, choice, log)
	if err != nil {
		return err
	}
	if err := b.Apply(ctx, rules); err != nil {
		return fmt.Errorf("applying the rules: %w", err)
	}
	n := 0
	for _, c := range rules.Chains {
		n += len(c.Rules)
	}
	log.Info("traffic is redirected", "rules", n, "families", rules.Families.String(), "backend", b.Name(), "took", elapsed(began))
	return nil
}

// print writes the rules that the command would apply to w. If DRY_RUN_FILE_PATH is set, it also writes them to that
// file.
func (a *applyCommand) print(w io.Writer, rules *iptables.RuleSet, choice backends.Choice) error {
	text, err := render(rules, dryRunFormat(a.dryRunFormat, choice))
	if err != nil {
		return err
	}
	if path := a.process.env("DRY_RUN_FILE_PATH"); path != "" {
		if err := writeFile(path, []byte(text)); err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, text)
	return err
}

const (
	formatNFT      = "nft"
	formatIPTables = "iptables"
	formatProse    = "prose"
)

func dryRunFormat(requested string, c backends.Choice) string {
	switch {
	case requested != "":
		return requested
	case usesIPTables(c):
		return formatIPTables
	}
	return formatNFT
}

const cleanHelp = `Remove all rules, routes and addresses that this program has added, with any
backend. Nothing else is changed.`

func newCleanCommand(p Process) *cobra.Command {
	c := &commonFlags{process: p}
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove the rules, and restore the network namespace",
		Long:  cleanHelp,
		Args:  usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			space, err := c.openNamespace()
			if err != nil {
				return err
			}
			defer space.close()
			return cleanRules(cmd.Context(), p, space, backends.Auto, newLogger(cmd.ErrOrStderr(), false, ""), false)
		},
	}
	c.addNamespace(cmd.Flags())
	return cmd
}

func cleanRules(ctx context.Context, p Process, space namespace, c backends.Choice, log *slog.Logger, dryRun bool) error {
	if dryRun {
		log.Info("the rules would be removed")
		return nil
	}
	if err := p.checkPrivileges("cleaning up"); err != nil {
		return err
	}
	began := time.Now()
	b, err := newBackend(space, c, log)
	if err == nil {
		err = b.Clean(ctx)
	}
	if err != nil {
		return fmt.Errorf("removing the rules: %w", err)
	}
	log.Info("traffic is no longer redirected", "took", elapsed(began))
	return nil
}
