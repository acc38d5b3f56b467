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

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

// apply is what the command does by itself.
type apply struct {
	common
	process Process
	// Of the contract.
	dryRun, skip, validate, reconcile, cleanup, force, native, cni bool
	binary                                                         string
	probePort                                                      uint16
	probeTimeout                                                   time.Duration
	// Ours.
	save, dryRunFormat string
	// Of other releases: they say how, and that is not asked here.
	logJSON, restoreFormat, trace, nsenter bool
	logLevel, ignored                      string
	switches                               []switchFlag
}

func (a *apply) addTo(f *pflag.FlagSet) {
	a.common.process = a.process
	a.probePort, a.probeTimeout, a.restoreFormat = 15002, 5*time.Second, true
	a.switches = []switchFlag{
		{"dry-run", "n", "print what would be put in force, and end", &a.dryRun, false},
		{"skip-rule-apply", "", "put nothing in force; with --run-validation, look whether traffic is captured already", &a.skip, false},
		{"run-validation", "", "then prove with packets that traffic is captured; exit with 126 if it is not", &a.validate, false},
		{"iptables-probe-port", "", "of Istio's --run-validation; no port is fixed here", &a.probePort, false},
		{"probe-timeout", "", "how long --run-validation takes at most", &a.probeTimeout, false},
		{"cleanup-only", "", "take the rules away, as the command clean does", &a.cleanup, false},
		{"native-nftables", "", "nftables or nothing; by default iptables takes its place where the kernel has no nftables", &a.native, false},
		{"force-iptables-binary", "", "use the host's iptables of this flavour: legacy or nft", &a.binary, false},
		{"reconcile", "", "replace rules that are there; that is always done", &a.reconcile, false},
		{"force-apply", "", "apply also if the rules are there; that is always done", &a.force, false},
		{"cni-mode", "", "applied by a CNI plugin; makes no difference here", &a.cni, false},
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
	f.StringVar(&a.save, "save", "", "file to save the options in, for --config elsewhere")
	f.StringVar(&a.dryRunFormat, "dry-run-format", "", "what --dry-run prints: nft, iptables (what iptables-restore reads) or prose (default: by the back end)")
	a.common.addTo(f, "")
}

func (a *apply) run(cmd *cobra.Command) error {
	if err := fromEnvironment(cmd.Flags(), a.process, a.switches); err != nil {
		return err
	}
	if !slices.Contains([]string{"", formatNFT, formatIPTables, formatProse}, a.dryRunFormat) {
		return usagef("--dry-run-format %q: use nft, iptables or prose", a.dryRunFormat)
	}
	log := logger(cmd.ErrOrStderr(), a.logJSON, a.logLevel)
	choice, err := backends.ParseChoice(a.binary, a.native)
	if err != nil {
		return usage(err)
	}
	space, err := a.open()
	if err != nil {
		return err
	}
	defer space.close()
	if a.cleanup {
		return clean(cmd.Context(), a.process, space, choice, log, a.dryRun)
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
	return a.apply(cmd.Context(), log, space, choice, options, rules)
}

func (a *apply) apply(ctx context.Context, log *slog.Logger, space namespace, choice backends.Choice, options *resolved, rules *iptables.RuleSet) error {
	keep, discard, err := a.draft(options)
	if err != nil {
		return err
	}
	defer discard()
	if !a.skip {
		if err := a.process.checkPrivileges("--istio-inbound-interception-mode " + options.options.Get("istio-inbound-interception-mode")); err != nil {
			return err
		}
		if err := putInForce(ctx, log, space, choice, rules); err != nil {
			return err
		}
	}
	if err := keep(); err != nil || !a.validate {
		return err
	}
	return a.prove(ctx, log, space, rules)
}

// draft writes the options down for --save. What is not put in force must not be in the file, and what cannot be saved must
// not be in force: so it is written before, and kept after.
func (a *apply) draft(options *resolved) (keep func() error, discard func(), err error) {
	if a.save == "" {
		return func() error { return nil }, func() {}, nil
	}
	text, err := newReport(options, nil).json()
	if err != nil {
		return nil, nil, err
	}
	d, err := newDraft(a.save, text)
	if err != nil {
		return nil, nil, err
	}
	return d.keep, d.discard, nil
}

func putInForce(ctx context.Context, log *slog.Logger, space namespace, choice backends.Choice, rules *iptables.RuleSet) error {
	began := time.Now()
	b, err := newBackend(space, choice, log)
	if err != nil {
		return err
	}
	if err := b.Apply(ctx, rules); err != nil {
		return fmt.Errorf("put the rules in force: %w", err)
	}
	n := 0
	for _, c := range rules.Chains {
		n += len(c.Rules)
	}
	log.Info("traffic is redirected", "rules", n, "families", rules.Families.String(), "by", b.Name(), "took", took(began))
	return nil
}

// print writes what would be put in force; to a file too if DRY_RUN_FILE_PATH names one.
func (a *apply) print(w io.Writer, rules *iptables.RuleSet, choice backends.Choice) error {
	text, err := render(rules, dryRunFormat(a.dryRunFormat, choice))
	if err != nil {
		return err
	}
	if path := a.process.env("DRY_RUN_FILE_PATH"); path != "" {
		if err := write(path, []byte(text)); err != nil {
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

func dryRunFormat(asked string, c backends.Choice) string {
	switch {
	case asked != "":
		return asked
	case usesIPTables(c):
		return formatIPTables
	}
	return formatNFT
}

const cleanHelp = `Take away every rule, route and address of ours, by whichever back end they are there, and nothing else.`

func newCleanCommand(p Process) *cobra.Command {
	c := &common{process: p}
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Take the rules away, and leave the namespace as it was",
		Long:  cleanHelp,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			space, err := c.open()
			if err != nil {
				return err
			}
			defer space.close()
			return clean(cmd.Context(), p, space, backends.Auto, logger(cmd.ErrOrStderr(), false, ""), false)
		},
	}
	c.addNamespace(cmd.Flags())
	return cmd
}

func clean(ctx context.Context, p Process, space namespace, c backends.Choice, log *slog.Logger, dryRun bool) error {
	if dryRun {
		log.Info("the rules would be taken away")
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
		return fmt.Errorf("take the rules away: %w", err)
	}
	log.Info("traffic is no longer redirected", "took", took(began))
	return nil
}
