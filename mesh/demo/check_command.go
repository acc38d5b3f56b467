package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh/demo/check"
)

// outcome is the JSON output of `pilotfish demo --check -o json`.
type outcome struct {
	OK      bool           `json:"ok"`
	Seconds float64        `json:"seconds"`
	Checks  []check.Result `json:"checks"`
	// Logs is the directory with the output of all processes. It is written after a failed check, or with --logs.
	Logs string `json:"logs,omitempty"`
}

// runCheck starts the shop, checks it, and stops it.
func (o options) runCheck(ctx context.Context, out io.Writer) error {
	start := time.Now()
	if o.port == 0 {
		var err error
		if o.port, err = freePort(); err != nil {
			return err
		}
	}
	s, err := newShop(o)
	if err != nil {
		return err
	}
	events := collectEvents(s.Events())
	s.start(context.WithoutCancel(ctx))
	report := o.report(out)
	results := check.Run(ctx, &check.Target{
		Mesh: s.Mesh, Gateway: s.url(), ConfigDir: s.configDir(), Folders: []string{s.folder},
		WaitReady: s.WaitReady, Stop: s.stop,
	}, report)
	<-events.done
	if len(events.events) == 0 && s.err != nil { // the mesh did not start, so there are no results and no logs
		return s.err
	}
	result := outcome{OK: true, Seconds: time.Since(start).Seconds(), Checks: results}
	failed := 0
	for _, r := range results {
		if !r.OK {
			result.OK = false
			failed++
		}
	}
	if (!result.OK && ctx.Err() == nil) || o.logs != "" {
		if result.Logs, err = events.write(o.logs, results); err != nil {
			fmt.Fprintf(os.Stderr, "writing the logs of the mesh: %v\n", err)
		}
	}
	if err := o.printOutcome(out, result); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("the demo was interrupted before all checks had run")
	case failed > 0:
		return fmt.Errorf("%d of %d checks failed; the output of all processes is in %s", failed, len(results), result.Logs)
	}
	return nil
}

func (o options) report(out io.Writer) check.Report {
	if o.output == "json" {
		return noReport{}
	}
	t := newTable(out)
	t.head()
	return t
}

func (o options) printOutcome(out io.Writer, r outcome) error {
	if o.output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	if r.OK {
		fmt.Fprintf(out, "\nAll %d checks passed in %.1f s.\n", len(r.Checks), r.Seconds)
	}
	return nil
}

// noReport is a check.Report that prints nothing.
type noReport struct{}

func (noReport) Begin(string)     {}
func (noReport) End(check.Result) {}
