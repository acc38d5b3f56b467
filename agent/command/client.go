package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/internal/jsonyaml"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

// agentQuery contains the flags that are common to all commands that query a running agent.
type agentQuery struct {
	configPath, format string
}

func (q *agentQuery) addTo(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&q.format, "output", "o", formatTable, "output format: table, json or yaml")
	usage.SetCompletions(c, "output", formatTable, formatJSON, formatYAML)
	addConfigPath(f, &q.configPath)
	logging.AddHiddenFlags(f)
}

// call sends a request to the agent and decodes the JSON response into out. in is encoded as the request's JSON body;
// nil sends no body.
func (q *agentQuery) call(ctx context.Context, timeout time.Duration, method, path string, in, out any) error {
	if q.format != formatTable && q.format != formatJSON && q.format != formatYAML {
		return usagef("output format %q is not known; use table, json or yaml", q.format)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return agent.DialControl(q.configPath).Call(ctx, method, path, in, out)
}

// print prints a response as JSON or YAML if the user selected that format. Otherwise it calls printTable.
func (q *agentQuery) print(w io.Writer, response any, printTable func(io.Writer) error) error {
	if q.format == formatTable {
		return printTable(w)
	}
	text, err := json.MarshalIndent(response, "", "  ")
	switch {
	case err != nil:
		return err
	case q.format == formatYAML:
		return jsonyaml.Write(w, text)
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// addConfigPath adds the flag that locates the running agent.
func addConfigPath(f *pflag.FlagSet, path *string) {
	f.StringVar(path, "config-path", config.DefaultConfigPath, "configPath of the running agent, the directory of its control socket")
}
