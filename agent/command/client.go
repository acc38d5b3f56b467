package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/agent/logging"
)

// agentQuery contains the flags that are common to all commands that query a running agent.
type agentQuery struct {
	configPath, format string
}

func (q *agentQuery) addTo(f *pflag.FlagSet) {
	f.StringVarP(&q.format, "output", "o", formatTable, "table or json")
	addConfigPath(f, &q.configPath)
	logging.AddHiddenFlags(f)
}

// call sends a request to the agent and decodes the JSON response into out. in is encoded as the request's JSON body;
// nil sends no body.
func (q *agentQuery) call(ctx context.Context, timeout time.Duration, method, path string, in, out any) error {
	if q.format != formatTable && q.format != formatJSON {
		return usagef("output format %q is not known; use table or json", q.format)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return agent.DialControl(q.configPath).Call(ctx, method, path, in, out)
}

// print prints a response as JSON if the user selected that format. Otherwise it calls printTable with a writer that
// aligns tab-separated columns.
func (q *agentQuery) print(w io.Writer, response any, printTable func(io.Writer)) error {
	if q.format == formatJSON {
		text, err := json.MarshalIndent(response, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n", text)
		}
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	printTable(t)
	return t.Flush()
}

// addConfigPath adds the flag that locates the running agent.
func addConfigPath(f *pflag.FlagSet, path *string) {
	f.StringVar(path, "config-path", config.DefaultConfigPath, "configPath of the running agent, the directory of its control socket")
}
