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

// agentQuery holds the shared flags of the commands that query a running agent.
type agentQuery struct {
	configPath, format string
	log                logging.Options
}

func (q *agentQuery) addTo(f *pflag.FlagSet) {
	f.StringVarP(&q.format, "output", "o", formatTable, "table or json")
	addConfigPath(f, &q.configPath)
	q.log.AddTo(f)
}

// call sends a request with the JSON body in, which may be nil, and decodes the response into out. limit is the
// timeout.
func (q *agentQuery) call(ctx context.Context, limit time.Duration, method, path string, in, out any) error {
	if q.format != formatTable && q.format != formatJSON {
		return usagef("output format %q is not known; use table or json", q.format)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return agent.DialControl(q.configPath).Call(ctx, method, path, in, out)
}

// print prints a response as JSON, or calls table with a writer that aligns tab-separated columns.
func (q *agentQuery) print(w io.Writer, answer any, table func(io.Writer)) error {
	if q.format == formatJSON {
		text, err := json.MarshalIndent(answer, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n", text)
		}
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	table(t)
	return t.Flush()
}

// addConfigPath adds the flag that locates the running agent.
func addConfigPath(f *pflag.FlagSet, path *string) {
	f.StringVar(path, "config-path", config.DefaultConfigPath, "the running agent's configPath, where its control socket is")
}
