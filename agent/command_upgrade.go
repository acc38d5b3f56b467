package agent

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const upgradeHelp = `Replace the Envoy of a running agent by another, of the same or any other version, without losing a
connection that its clients would not have ended themselves.

The new Envoy has to accept the bootstrap before anything is started. It is then started beside the old one,
and serves once it has its configuration from the control plane; the old one finishes what it has and is
ended as soon as no connection is left, or after --keep; requests that it has then are still finished while
the time of an end (TERMINATION_GRACE_PERIOD) allows. Should the new one not become ready, the old one goes
on, and the command fails with the reason. Ctrl-C before the new one serves has the same effect.

  hot-restart   the new Envoy takes over the listening sockets; for agents that run with --restart
  hand-over     both listen side by side for a moment; for all others

The agent's next start takes the Envoy of its own settings: change ENVOY_PATH or --envoy-path there too.

Exit codes: 0 when the new Envoy serves; 1 when it does not, or no agent answers; 2 wrong flags.`

func newUpgradeCommand() *cobra.Command {
	var configPath string
	var o upgradeOrder
	var own logOptions
	c := &cobra.Command{
		Use:     "upgrade --envoy-path FILE",
		Short:   "Replace the running Envoy by another without losing a connection",
		Long:    upgradeHelp,
		Example: "  pilotfish-agent upgrade --envoy-path /opt/envoy/1.40.0/envoy\n  pilotfish-agent upgrade --envoy-path ./envoy --keep 5m --wait",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.check()
			if err != nil {
				return err
			}
			if o.Path, err = filepath.Abs(o.Path); err != nil { // the agent may stand elsewhere
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			r, err := requestUpgrade(ctx, configPath, o)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), r)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Path, "envoy-path", "", "the Envoy to go to")
	f.StringVar(&o.Way, "way", "", "hot-restart or hand-over (default hot-restart where that is possible)")
	f.DurationVar(&o.ReadyWithin, "ready-within", defaultReadyWithin, "how long the new Envoy may take to become ready")
	f.DurationVar(&o.Keep, "keep", 0, "how long the old Envoy may keep connections that have no request (default drainDuration and 15s)")
	f.BoolVar(&o.Wait, "wait", false, "return when the old Envoy has ended, not when the new one serves")
	addConfigPath(f, &configPath)
	own.addTo(f)
	f.SortFlags = false
	return c
}

// check finds what the command line has wrong.
func (o upgradeOrder) check() error {
	switch {
	case o.Path == "":
		return usagef("which Envoy? name it with --envoy-path")
	case o.Way != "" && o.Way != hotRestart && o.Way != handOver:
		return usagef("--way %q is not known; use %s or %s", o.Way, hotRestart, handOver)
	case o.ReadyWithin <= 0:
		return usagef("--ready-within %v: write a time above zero, as 30s", o.ReadyWithin)
	case o.Keep < 0:
		return usagef("--keep %v: write a time, as 5m; leave it out for the drain time", o.Keep)
	}
	return nil
}

// requestUpgrade gives the order. How long it takes is bounded by the order itself.
func requestUpgrade(ctx context.Context, configPath string, o upgradeOrder) (upgradeReport, error) {
	var r upgradeReport
	err := dialControl(configPath).call(ctx, http.MethodPost, "/upgrade", o, &r)
	return r, err
}

// String tells it in a line.
func (r upgradeReport) String() string {
	text := fmt.Sprintf("Envoy %s (pid %d) serves in place of %s, by %s, after %v", r.To, r.PID, r.From, r.Way, r.Took.Round(time.Millisecond))
	if r.Until != "" {
		text += "; the old one has ended: " + r.Until
	}
	return text
}
