package mesh

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

// WriteTable writes the status as a table.
func (s Status) WriteTable(out io.Writer, now time.Time) error {
	control := "running for " + formatDuration(now.Sub(s.Control.Since))
	if !s.Control.Running {
		control = "stopped"
	}
	if s.Control.Reason != "" {
		control += " (" + s.Control.Reason + ")"
	}
	network := s.Network
	if s.Captured {
		network += ", with redirection"
	}
	f := terminal.Detect(out)
	head := fmt.Sprintf("mesh %s  %s  pid %d  up for %s\ncontrol plane %s  %s  configuration: %s\n\n",
		s.Mesh, network, s.PID, formatDuration(now.Sub(s.Started)), s.Control.Address, control, countProblems(s.Control.Problems))
	if err := f.WriteText(out, termtext.EscapeLines(head)); err != nil {
		return err
	}
	table := f.NewTable("", "WORKLOAD", "ADDRESS", "APPLICATION", "SIDECAR", "ENVOY", "CERTIFICATE", "CONFIG", "REQ/S").SetOptional("ENVOY", "SIDECAR", "ADDRESS")
	for _, i := range s.Instances {
		i.addRow(table, now)
	}
	if err := table.Write(out); err != nil {
		return err
	}
	if notes := s.notes(); notes != "" {
		return f.WriteText(out, "\n"+termtext.EscapeLines(notes))
	}
	return nil
}

// notes returns the details that do not fit into the table.
func (s Status) notes() string {
	var notes strings.Builder
	for _, i := range s.Instances {
		i.writeNotes(&notes)
	}
	for _, p := range s.Control.Problems {
		if p.Severity != config.Info {
			fmt.Fprintf(&notes, "  %s\n", termtext.OneLine(p.String()))
		}
	}
	return notes.String()
}

func countProblems(problems []config.Problem) string {
	refused, warnings := 0, 0
	for _, p := range problems {
		switch p.Severity {
		case config.Error:
			refused++
		case config.Warning:
			warnings++
		}
	}
	if refused+warnings == 0 {
		return "no problems"
	}
	return fmt.Sprintf("%d refused, %s", refused, phrase.Count(warnings, "warning"))
}

func (i InstanceStatus) addRow(table *terminal.Table, now time.Time) {
	mark, app := "✗", "-"
	switch {
	case i.Ready && (i.Config.State == ConfigRejected || i.Config.State == ConfigDegraded):
		mark = "!" // the proxy serves, but not with its newest configuration
	case i.Ready:
		mark = "✓"
	}
	if i.App != nil {
		app = i.App.short()
	}
	envoy, certificate, state, served := "-", "-", string(i.Config.State), formatRate(i.RequestsPerSecond)
	if i.Agent.State == ProcessNone {
		state, served = "-", "-" // only proxies have a configuration, and count requests
	}
	if i.EnvoyPID != 0 {
		envoy = fmt.Sprintf("pid %d", i.EnvoyPID)
	}
	if c := i.Certificate; c != nil {
		_, path, _ := strings.Cut(strings.TrimPrefix(c.SPIFFEID, "spiffe://"), "/")
		certificate = path + ", " + formatDuration(c.Expires.Sub(now)) + " left"
	}
	table.AddRow(mark, i.Name, i.ProxyAddress, app, i.Agent.short(), envoy, certificate, state, served)
	table.PaintCell(configColumn, stateColours[i.Config.State])
}

const configColumn = 7

var stateColours = map[ConfigState]terminal.Colour{ConfigRejected: terminal.Red, ConfigDegraded: terminal.Amber}

// short returns a process's state for a table cell.
func (p ProcessStatus) short() string {
	s := string(p.State)
	if p.PID != 0 {
		s = fmt.Sprintf("pid %d", p.PID)
	}
	if p.Restarts == 0 {
		return s
	}
	return s + ", " + phrase.Count(p.Restarts, "restart")
}

func formatRate(perSecond float64) string {
	if perSecond >= 10 {
		return fmt.Sprintf("%.0f", perSecond)
	}
	return fmt.Sprintf("%.1f", perSecond)
}

// writeNotes writes details that do not fit into the row.
func (i InstanceStatus) writeNotes(out *strings.Builder) {
	if !i.Ready {
		fmt.Fprintf(out, "  %s is not ready: %s\n", i.Name, termtext.OneLine(strings.Join(i.Reasons, "; ")))
	}
	if i.App != nil && i.App.LastExit != nil {
		fmt.Fprintf(out, "  %s: its application last %s\n", i.Name, i.App.LastExit)
		i.writeTail(out, i.App)
	}
	if i.Agent.LastExit != nil {
		fmt.Fprintf(out, "  %s: its sidecar last %s\n", i.Name, i.Agent.LastExit)
		i.writeTail(out, &i.Agent)
	}
	for _, r := range i.Config.Rejected {
		fmt.Fprintf(out, "  %s rejected %s %s: %s\n", i.Name, r.Type, strings.Join(r.Resources, ", "), termtext.OneLine(r.Reason))
		for _, b := range r.From {
			fmt.Fprintf(out, "    possible cause: %s at %s: %s\n", termtext.OneLine(b.Document), termtext.OneLine(b.Position), termtext.OneLine(b.Evidence))
		}
		if r.Remedy != "" {
			fmt.Fprintf(out, "    %s\n", termtext.OneLine(r.Remedy))
		}
	}
	if i.Config.State != ConfigInSync && i.Config.Reason != "" {
		fmt.Fprintf(out, "  %s: %s\n", i.Name, termtext.OneLine(i.Config.Reason))
	}
}

// writeTail writes the last output lines of a process that ended with a failure, unless the instance is ready.
func (i InstanceStatus) writeTail(out *strings.Builder, p *ProcessStatus) {
	if i.Ready || p.LastExit.IsClean() {
		return
	}
	for _, line := range p.LastExit.Tail {
		fmt.Fprintf(out, "    │ %s\n", termtext.OneLine(line))
	}
}

// formatDuration formats a duration with one or two units, such as days or minutes.
func formatDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
