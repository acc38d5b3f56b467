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
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

const upgradeHelp = `Replace the Envoy of a running agent by another Envoy binary, of the same or
another version, without cutting connections.

The agent checks that the new Envoy accepts the bootstrap, and starts it while
the old Envoy runs. The new Envoy serves once it has its configuration from the
control plane. The old Envoy then drains. The agent stops it when its last
connection is closed, or after --keep; active requests may then finish within
the shutdown time (TERMINATION_GRACE_PERIOD). If the new Envoy does not become
ready, or after Ctrl-C before it serves, the old Envoy continues to serve, and
the command fails with the reason.

There are two ways (--way):
  hot-restart  the old Envoy passes its listening sockets to the new one; only
               for agents that run with --restart, and for Envoy versions that
               support a hot restart from the old to the new one
  hand-over    both Envoys listen at the same time for a moment; for all agents

The upgrade does not change the agent's settings. To use the new Envoy after the
agent's next start, change ENVOY_PATH or --envoy-path in the settings too.

Exit codes:
  0  the new Envoy serves
  1  the new Envoy does not serve, or no agent responds
  2  wrong flags`

func newUpgradeCommand() *cobra.Command {
	var configPath string
	var o agent.UpgradeRequest
	c := &cobra.Command{
		Use:     "upgrade --envoy-path FILE",
		Short:   "Replace the running Envoy without losing connections",
		Long:    upgradeHelp,
		Example: "  pilotfish-agent upgrade --envoy-path /opt/envoy/1.40.0/envoy\n  pilotfish-agent upgrade --envoy-path ./envoy --keep 5m --wait",
		Args:    usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := checkUpgradeFlags(o)
			if err != nil {
				return err
			}
			// The agent's working directory may differ from that of this command.
			if o.Path, err = filepath.Abs(o.Path); err != nil {
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
	f.StringVar(&o.Path, "envoy-path", "", "path of the new Envoy binary; required")
	f.StringVar(&o.Way, "way", "", "how the new Envoy replaces the old one: hot-restart or hand-over (default: hot-restart if possible)")
	f.DurationVar(&o.ReadyWithin, "ready-within", agent.DefaultReadyWithin, "maximum time until the new Envoy is ready; after it, the old Envoy continues to serve")
	f.DurationVar(&o.Keep, "keep", 0, "time after which idle connections of the old Envoy are closed (default: drainDuration plus 15s)")
	f.BoolVar(&o.Wait, "wait", false, "return when the old Envoy has exited instead of when the new one is ready")
	usage.SetCompletions(c, "way", agent.HotRestart, agent.HandOver)
	addConfigPath(f, &configPath)
	logging.AddHiddenFlags(f)
	f.SortFlags = false
	return c
}

func checkUpgradeFlags(o agent.UpgradeRequest) error {
	switch {
	case o.Path == "":
		return usagef("--envoy-path is missing: write the path of the new Envoy")
	case o.Way != "" && o.Way != agent.HotRestart && o.Way != agent.HandOver:
		return usagef("--way %q is not known; use %s or %s", o.Way, agent.HotRestart, agent.HandOver)
	case o.ReadyWithin <= 0:
		return usagef("--ready-within %v: write a duration above 0, such as 30s", o.ReadyWithin)
	case o.Keep < 0:
		return usagef("--keep %v: write a duration such as 5m, or omit the flag for the default, drainDuration plus 15s", o.Keep)
	}
	return nil
}

// requestUpgrade sends the request to the agent. It needs no timeout, because the agent applies the time limits in the
// request.
func requestUpgrade(ctx context.Context, configPath string, o agent.UpgradeRequest) (agent.UpgradeReport, error) {
	var r agent.UpgradeReport
	err := agent.DialControl(configPath).Call(ctx, http.MethodPost, "/upgrade", o, &r)
	return r, err
}
