package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

func newXDSCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "xds",
		Short: "Show the xDS traffic between Envoy and the control plane",
		Args:  usage.Args(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newXDSStatusCommand(), newXDSHistoryCommand(), newTapCommand())
	return c
}

// newXDSQueryCommand completes the command c so that it requests path from the running agent. The command prints the
// response as JSON or YAML, or calls table to print it.
func newXDSQueryCommand[T any](c *cobra.Command, path string, table func(io.Writer, T) error) *cobra.Command {
	var q agentQuery
	c.Args = usage.Args()
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var report T
		if err := q.call(cmd.Context(), logTimeout, http.MethodGet, path, nil, &report); err != nil {
			return err
		}
		return q.print(cmd.OutOrStdout(), report, func(w io.Writer) error { return table(w, report) })
	}
	q.addTo(c)
	return c
}

func newXDSStatusCommand() *cobra.Command {
	return newXDSQueryCommand(&cobra.Command{
		Use:   "status",
		Short: "Show whether Envoy accepted each resource type, and why not",
	}, "/xds/status", printXDSStatus)
}

func printXDSStatus(w io.Writer, s xdsproxy.Status) error {
	f := terminal.Detect(w)
	connection := f.NewTable()
	state := "connected"
	if !s.Connected {
		state = "not connected: " + cmp.Or(s.Reason, "no response yet")
	}
	connection.AddRow("control plane", cmp.Or(s.Upstream, "-"), state)
	connection.AddRow("last response", formatAgo(s.LastResponse))
	if s.LastGood != nil {
		addLastGood(connection, *s.LastGood)
	}
	if err := connection.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	types := f.NewTable("TYPE", "STATE", "SUBSCRIBED", "VERSION", "ACKS", "NACKS", "LAST ACK", "BYTES").SetOptional("BYTES", "SUBSCRIBED")
	for _, t := range s.Types {
		subscribed := fmt.Sprint(t.Subscribed)
		if t.Wildcard {
			subscribed = "all"
		}
		types.AddRow(shortTypeOf(t.TypeURL), t.State, subscribed, t.Version, fmt.Sprint(t.Acks), fmt.Sprint(t.Nacks), formatAgo(t.LastAck), fmt.Sprint(t.ResponseBytes))
		types.PaintCell(stateColumn, stateColours[t.State])
	}
	if err := types.Write(w); err != nil {
		return err
	}
	return f.WriteText(w, termtext.EscapeLines(describeRejections(s)))
}

const stateColumn = 1

var stateColours = map[string]terminal.Colour{xdsproxy.StateRejected: terminal.Red, xdsproxy.StatePending: terminal.Amber, xdsproxy.StateRequested: terminal.Amber}

// describeRejections returns a line for each rejected type and resource.
func describeRejections(s xdsproxy.Status) string {
	var b strings.Builder
	for _, t := range s.Types {
		if n := t.LastNack; n != nil && t.State == xdsproxy.StateRejected {
			fmt.Fprintf(&b, "\n%s was rejected %s: %s\n", shortTypeOf(t.TypeURL), formatAgo(n.Time), termtext.ShortLine(n.Reason))
		}
		for _, r := range t.Rejected {
			fmt.Fprintf(&b, "rejected: %s %s, %s, since %s: %s\n", shortTypeOf(t.TypeURL), r.Name, phrase.Count(r.Count, "time"), formatAgo(r.Since), termtext.ShortLine(r.Reason))
		}
	}
	return b.String()
}

func newXDSHistoryCommand() *cobra.Command {
	return newXDSQueryCommand(&cobra.Command{
		Use:   "history",
		Short: "Show recent xDS events between Envoy, agent and control plane",
	}, "/xds/history", printXDSHistory)
}

func printXDSHistory(w io.Writer, h xdsproxy.History) error {
	table := terminal.Detect(w).NewTable()
	for _, e := range h.Events {
		what := shortTypeOf(e.TypeURL)
		if e.TypeURL == "" {
			what = e.Address
		}
		if e.Process != 0 {
			what = fmt.Sprintf("pid %d", e.Process)
		}
		table.AddRow(e.Time.Local().Format(timeOfDayFormat), e.Kind, what, e.Version, eventDetail(e))
	}
	return table.Write(w)
}

func eventDetail(e xdsproxy.Event) string {
	var parts []string
	if e.Resources > 0 || e.Removed > 0 {
		parts = append(parts, fmt.Sprintf("+%d -%d", e.Resources, e.Removed))
	}
	if e.Bytes > 0 {
		parts = append(parts, phrase.Count(e.Bytes, "byte"))
	}
	if e.Reason != "" {
		parts = append(parts, termtext.ShortLine(e.Reason))
	}
	return strings.Join(parts, ", ")
}

const tapHelp = `Show the xDS messages between Envoy, agent and control plane live, one line for
each message.

With --contents, each message is followed by its resources as JSON. Secrets are
removed from them: fields that Envoy's API marks as sensitive, and values that
look like a key, a token or a password. Resources of unknown types are shown in
base64 with their size.

The tap does not slow down the streams: messages that it cannot write in time
are dropped and counted.`

func newTapCommand() *cobra.Command {
	var configPath, format string
	var o agent.TapRequest
	c := &cobra.Command{
		Use:     "tap",
		Short:   "Show xDS messages live",
		Long:    tapHelp,
		Example: "  pilotfish-agent xds tap\n  pilotfish-agent xds tap --type cds,eds --name reviews --contents --for 5m\n  pilotfish-agent xds tap -o json | jq 'select(.kind == \"nack\")'",
		Args:    usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			show, err := tapPrinter(cmd.OutOrStdout(), format)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			lines, err := agent.DialControl(configPath).OpenTap(ctx, o)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			defer lines.Close()
			return readTap(ctx, lines, show)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Types, "type", nil, "show only these resource types: cds, lds, rds, eds, …, a type name, or a type URL")
	f.StringVar(&o.Name, "name", "", "show only resources whose name contains this text")
	f.BoolVar(&o.Contents, "contents", false, "show the contents of the resources as JSON, without secrets")
	f.DurationVar(&o.For, "for", 30*time.Second, "time after which the tap ends")
	f.StringVarP(&format, "output", "o", formatTable, "output format: table (one line per message) or json (one object per line)")
	usage.SetCompletions(c, "output", formatTable, formatJSON)
	addConfigPath(f, &configPath)
	logging.AddHiddenFlags(f)
	return c
}

// readTap calls show for each line of the tap, until the tap ends or ctx is cancelled.
func readTap(ctx context.Context, from io.Reader, show func(json.RawMessage) error) error {
	lines := json.NewDecoder(from)
	for {
		var line json.RawMessage
		switch err := lines.Decode(&line); {
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("the agent ended the tap: %w", err)
		}
		if err := show(line); err != nil {
			return err
		}
	}
}

func tapPrinter(w io.Writer, format string) (func(json.RawMessage) error, error) {
	switch format {
	case formatJSON:
		return func(line json.RawMessage) error {
			_, err := fmt.Fprintf(w, "%s\n", line)
			return err
		}, nil
	case formatTable:
		return func(line json.RawMessage) error {
			var l xdsproxy.TapLine
			if err := json.Unmarshal(line, &l); err != nil {
				return fmt.Errorf("reading the agent's response: %w", err)
			}
			return printTapLine(w, l)
		}, nil
	}
	return nil, usagef("output format %q is not known; use table or json", format)
}

// timeOfDayFormat includes milliseconds, so that users see the order of messages.
const timeOfDayFormat = "15:04:05.000"

func printTapLine(w io.Writer, l xdsproxy.TapLine) error {
	if l.Lost > 0 {
		fmt.Fprintf(w, "… dropped %s\n", phrase.Count(l.Lost, "message"))
	}
	var err error
	switch l.Kind {
	case "":
	case xdsproxy.TapResource:
		_, err = fmt.Fprintf(w, "    %s %s (%s)\n", l.Name, l.Version, phrase.Count(l.Bytes, "byte"))
		if err == nil && len(l.Content) > 0 {
			_, err = fmt.Fprintf(w, "    %s\n", l.Content)
		}
	default:
		_, err = fmt.Fprintf(w, "%s  %-13s → %-13s  %-8s  %-22s  %s\n", l.Time.Local().Format(timeOfDayFormat), l.From, l.To, l.Kind, shortTypeOf(l.TypeURL), tapDetail(l))
	}
	return err
}

func tapDetail(l xdsproxy.TapLine) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if l.Version != "" {
		add("version %s", l.Version)
	}
	if l.Kind == xdsproxy.TapResponse {
		add("%s, %s", phrase.Count(l.Resources, "resource"), phrase.Count(l.Bytes, "byte"))
	}
	list := func(what string, names []string) {
		if len(names) > 0 {
			add("%s %s", what, strings.Join(names, " "))
		}
	}
	list("names", l.Names)
	list("unsubscribed", l.Unsubscribed)
	list("removed", l.Removed)
	if l.Known > 0 {
		add("the client already has %s", phrase.Count(l.Known, "resource"))
	}
	if l.Reason != "" {
		add("%s", termtext.ShortLine(l.Reason))
	}
	return strings.Join(parts, "; ")
}

func shortTypeOf(typeURL string) string {
	return typeURL[strings.LastIndexAny(typeURL, "./")+1:]
}

func formatAgo(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return time.Since(t).Round(time.Second).String() + " ago"
}
