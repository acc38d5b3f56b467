package command

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
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
		Args:    usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Reset && (o.Agent != "" || o.Envoy != "") {
				return usagef("--reset cannot be combined with --agent or --envoy")
			}
			var r logging.LevelReport
			if err := q.call(cmd.Context(), logTimeout, http.MethodPost, "/log", o, &r); err != nil {
				return err
			}
			return q.print(cmd.OutOrStdout(), r, func(w io.Writer) error { return printLogLevels(w, r) })
		},
	}
	f := c.Flags()
	f.StringVar(&o.Agent, "agent", "", "log levels of the agent, such as debug or info,xds:debug")
	f.StringVar(&o.Envoy, "envoy", "", "log levels of Envoy, such as debug or info,upstream:debug")
	f.DurationVar(&o.For, "for", 10*time.Minute, "time until the initial levels are restored; 0: never")
	f.BoolVar(&o.Reset, "reset", false, "restore the initial levels now")
	q.addTo(c)
	return c
}

func printLogLevels(w io.Writer, r logging.LevelReport) error {
	t := terminal.Detect(w).NewTable()
	t.AddRow("agent", cmp.Or(r.Agent, "-"))
	if r.Problem != "" {
		t.AddRow("envoy", "unknown: "+r.Problem)
	} else {
		t.AddRow("envoy", r.Envoy)
	}
	switch {
	case r.Until != nil:
		t.AddRow("initial levels", fmt.Sprintf("at %s, in %v", r.Until.Format(time.TimeOnly), time.Until(*r.Until).Round(time.Second)))
	case r.Changed:
		t.AddRow("initial levels", "with --reset, or when the agent restarts")
	}
	return t.Write(w)
}
