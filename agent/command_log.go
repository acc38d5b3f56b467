package agent

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

const logHelp = `Show or change what a running agent and its Envoy log.

Changed levels go back to those of the start after a while (--for), also when Envoy is started again meanwhile.
Levels of the agent: debug, info, warn, error, none; of one part by its name, as xds:debug.
Levels of Envoy: trace, debug, info, warning, error, critical, off; of one component as upstream:debug.`

const logTimeout = 15 * time.Second

func newLogCommand() *cobra.Command {
	var q question
	var o logOrder
	c := &cobra.Command{
		Use:     "log",
		Short:   "Show or change the log levels of a running agent and its Envoy",
		Long:    logHelp,
		Example: "  pilotfish-agent log\n  pilotfish-agent log --agent xds:debug --envoy info,upstream:debug --for 5m\n  pilotfish-agent log --reset",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Reset && (o.Agent != "" || o.Envoy != "") {
				return usagef("--reset goes without --agent and --envoy")
			}
			var r logReport
			if err := q.ask(cmd.Context(), logTimeout, http.MethodPost, "/log", o, &r); err != nil {
				return err
			}
			return q.print(cmd.OutOrStdout(), r, r.table)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Agent, "agent", "", "levels of the agent's own log (debug; info,xds:debug)")
	f.StringVar(&o.Envoy, "envoy", "", "levels of Envoy's log (debug; info,upstream:debug)")
	f.DurationVar(&o.For, "for", 10*time.Minute, "how long the levels are to stay; 0 for as long as the agent runs")
	f.BoolVar(&o.Reset, "reset", false, "go back to the levels of the start now")
	q.addTo(f)
	return c
}

func (r logReport) table(t io.Writer) {
	fmt.Fprintf(t, "agent\t%s\n", cmp.Or(r.Agent, "-"))
	if r.Problem != "" {
		fmt.Fprintf(t, "envoy\tnot known: %s\n", r.Problem)
	} else {
		fmt.Fprintf(t, "envoy\t%s\n", r.Envoy)
	}
	switch {
	case r.Until != nil:
		fmt.Fprintf(t, "back to the levels of the start\tat %s, in %v\n", r.Until.Format(time.TimeOnly), time.Until(*r.Until).Round(time.Second))
	case r.Changed:
		fmt.Fprintf(t, "back to the levels of the start\twith --reset, or when the agent is started again\n")
	}
}

// newLevels offers the log levels on the control socket.
func (a *Agent) newLevels() (*logControl, error) {
	c := a.Config.Envoy
	start, err := parseEnvoyLevels("--proxyLogLevel", "warning,"+c.LogLevel+","+c.ComponentLogLevel)
	if err != nil {
		return nil, err
	}
	l := newLogControl(a.Log, a.Logger, start, func() envoyLog {
		if i := a.envoyInstance(); i != nil {
			return i.admin
		}
		return nil
	})
	a.control.Handle("POST /log", answer(l.order))
	return l, nil
}
