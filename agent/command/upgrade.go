package command

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/logging"
)

const upgradeHelp = `Replace the Envoy of a running agent by another one, of the same or another version, without losing connections
that the clients would not have closed themselves.

The new Envoy must first accept the bootstrap. It is then started while the old one runs, and serves once it has
its configuration from the control plane. The old one drains. It is stopped as soon as no connection is left, or
after --keep; requests that are active then may finish within the shutdown time (TERMINATION_GRACE_PERIOD). If the
new one does not become ready, the old one continues to serve, and the command fails with the reason. Ctrl-C before
the new one serves has the same effect.

  hot-restart   the new Envoy receives the listening sockets; for agents that run with --restart
  hand-over     both listen at the same time for a moment; for all others

The agent's next start uses the Envoy of its own settings: change ENVOY_PATH or --envoy-path there too.

Exit codes: 0 if the new Envoy serves; 1 if it does not, or no agent answers; 2 for wrong flags.`

func newUpgradeCommand() *cobra.Command {
	var configPath string
	var o agent.UpgradeRequest
	var own logging.Options
	c := &cobra.Command{
		Use:     "upgrade --envoy-path FILE",
		Short:   "Replace the running Envoy by another without losing a connection",
		Long:    upgradeHelp,
		Example: "  pilotfish-agent upgrade --envoy-path /opt/envoy/1.40.0/envoy\n  pilotfish-agent upgrade --envoy-path ./envoy --keep 5m --wait",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := checkUpgradeFlags(o)
			if err != nil {
				return err
			}
			if o.Path, err = filepath.Abs(o.Path); err != nil { // the agent may have another working directory
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
	f.StringVar(&o.Path, "envoy-path", "", "path of the new Envoy")
	f.StringVar(&o.Way, "way", "", "hot-restart or hand-over (default hot-restart where that is possible)")
	f.DurationVar(&o.ReadyWithin, "ready-within", agent.DefaultReadyWithin, "time in which the new Envoy must become ready")
	f.DurationVar(&o.Keep, "keep", 0, "time after which the old Envoy's connections without a request are closed (default drainDuration plus 15s)")
	f.BoolVar(&o.Wait, "wait", false, "return when the old Envoy has exited instead of when the new one is ready")
	addConfigPath(f, &configPath)
	own.AddTo(f)
	f.SortFlags = false
	return c
}

// checkUpgradeFlags returns an error if the flags are invalid.
func checkUpgradeFlags(o agent.UpgradeRequest) error {
	switch {
	case o.Path == "":
		return usagef("--envoy-path is missing: write the path of the new Envoy")
	case o.Way != "" && o.Way != agent.HotRestart && o.Way != agent.HandOver:
		return usagef("--way %q is not known; use %s or %s", o.Way, agent.HotRestart, agent.HandOver)
	case o.ReadyWithin <= 0:
		return usagef("--ready-within %v: write a time above zero, as 30s", o.ReadyWithin)
	case o.Keep < 0:
		return usagef("--keep %v: write a time, as 5m; leave it out for the drain time", o.Keep)
	}
	return nil
}

// requestUpgrade sends the request to the agent. The request itself contains the timeouts.
func requestUpgrade(ctx context.Context, configPath string, o agent.UpgradeRequest) (agent.UpgradeReport, error) {
	var r agent.UpgradeReport
	err := agent.DialControl(configPath).Call(ctx, http.MethodPost, "/upgrade", o, &r)
	return r, err
}
