// Package console prints a mesh's events on a terminal: a line for each workload when it becomes ready, problems, and
// the output of all processes, each line with the name of its source.
package console

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// palette contains the colours of workloads. Red is not in it, because it is reserved for errors.
var palette = []terminal.Colour{"\x1b[36m", "\x1b[35m", "\x1b[34m", "\x1b[32m", "\x1b[33m", "\x1b[96m", "\x1b[95m", "\x1b[94m", "\x1b[92m", "\x1b[93m"}

// Printer writes events. It is not safe for concurrent use.
type Printer struct {
	// Verbose also prints the info logs of sidecars and the control plane.
	Verbose bool

	out         io.Writer
	stopping    bool // while the mesh stops, sidecars' logs are not printed
	format      terminal.Format
	width       int // width of the name column
	nameColours map[string]terminal.Colour
}

// New returns a printer. The printer escapes its output itself. If out is a termtext.Writer, the printer writes to the
// underlying writer. The width of the first column is that of the longest name in names.
func New(out io.Writer, colours bool, names ...string) *Printer {
	p := &Printer{out: termtext.Raw(out), format: terminal.Format{Colours: colours}, nameColours: map[string]terminal.Colour{}}
	for _, name := range names {
		p.width = max(p.width, len(name))
		p.colourOf(name)
	}
	return p
}

// Print writes one event. It writes the log lines of workloads, sidecars and the control plane only if logs is set.
func (p *Printer) Print(e mesh.Event, logs bool) {
	if e.Dropped > 0 {
		p.writeLine("", p.paint(terminal.Dim, fmt.Sprintf("(%s of output dropped: the terminal was too slow)", phrase.Count(e.Dropped, "line"))))
	}
	switch e.Kind {
	case mesh.MeshStarting:
		p.writeLine("", p.paint(terminal.Dim, sanitize(e.Message)))
	case mesh.Ready:
		p.writeLine(e.Instance, p.paint(terminal.Green, "✓")+" ready in "+Duration(e.Took))
	case mesh.NotReady:
		p.writeLine(e.Instance, p.paint(terminal.Amber, "!")+" "+sanitize(e.Message))
	case mesh.Exited, mesh.Failed:
		p.exit(e, logs)
	case mesh.Restarting:
		p.writeLine(e.Instance, p.paint(terminal.Dim, sanitize(e.Message)))
	case mesh.MeshStopping:
		p.stopping = true
		p.writeLine("", p.paint(terminal.Dim, "stopping: "+sanitize(e.Message)))
	case mesh.ConfigProblem, mesh.ProblemSolved:
		p.problem(e)
	case mesh.ControlPlaneDown:
		if p.stopping && !p.Verbose {
			return
		}
		p.writeLine(controlPlaneLabel, p.paint(terminal.Amber, "!")+" "+sanitize(e.Message))
	case mesh.Log:
		if logs || e.Origin == mesh.OriginMesh {
			p.log(e)
		}
	}
}

func (p *Printer) problem(e mesh.Event) {
	if e.Problem == nil || (e.Problem.Severity == config.Info && !p.Verbose) {
		return
	}
	text := sanitize(e.Problem.String())
	switch {
	case e.Kind == mesh.ProblemSolved:
		text = p.paint(terminal.Green, "✓") + " resolved: " + text
	case e.Problem.Severity == config.Error:
		text = p.paint(terminal.Red, "✗") + " " + text
	default:
		text = p.paint(terminal.Amber, "!") + " " + text
	}
	p.writeLine("configuration", text)
}

// exit prints the exit of a process. If logs is false, it also prints the last lines of the process's output, because
// they were not printed before.
func (p *Printer) exit(e mesh.Event, logs bool) {
	mark := p.paint(terminal.Amber, "!")
	if e.Kind == mesh.Failed {
		mark = p.paint(terminal.Red, "✗")
	}
	p.writeLine(e.Instance, mark+" "+sanitize(e.Message))
	if e.Exit == nil || e.Exit.IsClean() || (logs && e.Origin == mesh.OriginWorkload) {
		return
	}
	for _, tail := range e.Exit.Tail {
		p.writeLine(e.Instance, p.paint(terminal.Dim, "  "+sanitize(tail)))
	}
}

// routineLog matches info logs of the agent, the control plane (log/slog) and Envoy.
var routineLog = regexp.MustCompile(`^time=\S+ level=(INFO|DEBUG)|"level":"(INFO|DEBUG)"|^\[[^\]]*\]\[[^\]]*\]\[(info|debug|trace)\]`)

func (p *Printer) log(e mesh.Event) {
	text := sanitize(e.Line)
	if e.Origin != mesh.OriginWorkload {
		if !p.Verbose && (p.stopping && e.Origin != mesh.OriginMesh || routineLog.MatchString(text)) {
			return
		}
		text = p.paint(terminal.Dim, text)
	}
	name := e.Instance
	if e.Origin == mesh.OriginControlPlane {
		name = controlPlaneLabel
	}
	p.writeLine(name, text)
}

// controlPlaneLabel is the control plane's name in the first column.
const controlPlaneLabel = "control plane"

// writeLine writes text after the name of its source.
func (p *Printer) writeLine(name, text string) {
	if name == "" {
		name = "mesh"
	}
	fmt.Fprintf(p.out, "%s %s\n", p.paint(p.colourOf(name), fmt.Sprintf("%-*s │", p.width, sanitize(name))), text)
}

// colourOf returns the colour for a name. When all colours have been used, they repeat.
func (p *Printer) colourOf(name string) terminal.Colour {
	if _, ok := p.nameColours[name]; !ok {
		p.nameColours[name] = palette[len(p.nameColours)%len(palette)]
	}
	return p.nameColours[name]
}

// Bold returns text in bold.
func (p *Printer) Bold(text string) string { return p.paint(terminal.Bold, text) }

func (p *Printer) paint(colour terminal.Colour, text string) string {
	return p.format.Paint(colour, text)
}

// escape matches a complete control sequence, such as a colour. Without this expression, only the escape character
// would be removed, and the terminal would show the rest as text.
var escape = regexp.MustCompile("\x1b(\\[[0-9;?]*[ -/]*[@-~]|[^\\[])?")

// sanitize returns a line that cannot control the terminal. It removes control sequences, and escapes other characters
// that a terminal may interpret.
func sanitize(line string) string {
	if strings.ContainsRune(line, '\x1b') {
		line = escape.ReplaceAllString(line, "")
	}
	return termtext.EscapeLines(strings.ReplaceAll(strings.TrimRight(line, "\r"), "\n", " "))
}

// Duration formats a duration for messages: "87 ms", "1.24 s", "2m5s".
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
