package command

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent/logging"
)

const logHelp = `Show the log levels of a running agent and its Envoy, or change them with
--agent and --envoy. After the time --for, the initial levels are restored, even
if Envoy was restarted meanwhile.

Levels of the agent: debug, info, warn, error, none. SCOPE:LEVEL, such as
xds:debug, sets the level of one scope.

Levels of Envoy: trace, debug, info, warning, error, critical, off.
COMPONENT:LEVEL, such as upstream:debug, sets the level of one component.`

const logTimeout = 15 * time.Second

func newLogCommand() *cobra.Command {
	var q agentQuery
	var o logging.LevelRequest
	c := &cobra.Command{
		Use:     "log",
		Short:   "Show or change the log levels of a running agent and its Envoy",
		Long:    logHelp,
		Example: "  pilotfish-agent log\n  pilotfish-agent log --agent xds:debug --envoy info,upstream:debug --for 5m\n  pilotfish-agent log --reset",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Reset && (o.Agent != "" || o.Envoy != "") {
				return usagef("--reset cannot be combined with --agent or --envoy")
			}
			var r logging.LevelReport
			if err := q.call(cmd.Context(), logTimeout, http.MethodPost, "/log", o, &r); err != nil {
				return err
			}
			return q.print(cmd.OutOrStdout(), r, func(w io.Writer) { printLogLevels(w, r) })
		},
	}
	f := c.Flags()
	f.StringVar(&o.Agent, "agent", "", "log levels of the agent, such as debug or info,xds:debug")
	f.StringVar(&o.Envoy, "envoy", "", "log levels of Envoy, such as debug or info,upstream:debug")
	f.DurationVar(&o.For, "for", 10*time.Minute, "time until the initial levels are restored; 0: never")
	f.BoolVar(&o.Reset, "reset", false, "restore the initial levels now")
	q.addTo(f)
	return c
}

func printLogLevels(t io.Writer, r logging.LevelReport) {
	fmt.Fprintf(t, "agent\t%s\n", cmp.Or(r.Agent, "-"))
	if r.Problem != "" {
		fmt.Fprintf(t, "envoy\tunknown: %s\n", r.Problem)
	} else {
		fmt.Fprintf(t, "envoy\t%s\n", r.Envoy)
	}
	switch {
	case r.Until != nil:
		fmt.Fprintf(t, "initial levels\tat %s, in %v\n", r.Until.Format(time.TimeOnly), time.Until(*r.Until).Round(time.Second))
	case r.Changed:
		fmt.Fprintf(t, "initial levels\twith --reset, or when the agent restarts\n")
	}
}
