package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
)

// question is what the commands have in common that ask a running agent: where it is, and how its answer is printed.
type question struct {
	configPath, format string
	log                logOptions
}

func (q *question) addTo(f *pflag.FlagSet) {
	f.StringVarP(&q.format, "output", "o", formatTable, "table or json")
	addConfigPath(f, &q.configPath)
	q.log.addTo(f)
}

// ask gives the order in, which may be nil, and reads the answer into out, within the time.
func (q *question) ask(ctx context.Context, limit time.Duration, method, path string, in, out any) error {
	if q.format != formatTable && q.format != formatJSON {
		return usagef("output format %q is not known; use table or json", q.format)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return dialControl(q.configPath).call(ctx, method, path, in, out)
}

// print prints an answer as JSON, or by table, to a writer that aligns columns between tabs.
func (q *question) print(w io.Writer, answer any, table func(io.Writer)) error {
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
