// Package console prints what happens in a mesh for a person at a terminal: a line for each workload as it becomes
// ready, what goes wrong, and the output of all processes, each line marked with whose it is.
package console

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// The escape sequences of a terminal that are used here.
const (
	reset = "\x1b[0m"
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	amber = "\x1b[33m"
)

// palette holds the colours of workloads; red is kept for what is wrong.
var palette = []string{"\x1b[36m", "\x1b[35m", "\x1b[34m", "\x1b[32m", "\x1b[33m", "\x1b[96m", "\x1b[95m", "\x1b[94m", "\x1b[92m", "\x1b[93m"}

// Printer writes events. It is not safe for concurrent use.
type Printer struct {
	// Verbose shows what sidecars and the control plane log when all is well, too.
	Verbose bool

	out      io.Writer
	stopping bool // what sidecars say while they are stopped is of no interest
	colours  bool
	width    int // of the names
	chosen   map[string]string
}

// New prints to out, with colours where told so. Names are the instances', to line up what follows them.
func New(out io.Writer, colours bool, names ...string) *Printer {
	p := &Printer{out: out, colours: colours, chosen: map[string]string{}}
	for _, name := range names {
		p.width = max(p.width, len(name))
		p.colourOf(name)
	}
	return p
}

// IsTerminal says whether a person reads what is written there.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Print writes one event. Log lines are left out unless logs is set; what is wrong is always told.
func (p *Printer) Print(e mesh.Event, logs bool) {
	if e.Dropped > 0 {
		p.line("", p.paint(dim, fmt.Sprintf("(%d lines of output left out: they came too fast)", e.Dropped)))
	}
	switch e.Kind {
	case mesh.MeshStarting:
		p.line("", p.paint(dim, clean(e.Message)))
	case mesh.Ready:
		p.line(e.Instance, p.paint(green, "✓")+" ready in "+Duration(e.Took))
	case mesh.NotReady:
		p.line(e.Instance, p.paint(amber, "!")+" "+clean(e.Message))
	case mesh.Exited, mesh.Failed:
		p.exit(e, logs)
	case mesh.Restarting:
		p.line(e.Instance, p.paint(dim, e.Message))
	case mesh.MeshStopping:
		p.stopping = true
		p.line("", p.paint(dim, "stopping: "+clean(e.Message)))
	case mesh.ConfigProblem, mesh.ProblemSolved:
		p.problem(e)
	case mesh.ControlPlaneDown:
		if p.stopping && !p.Verbose {
			return
		}
		p.line(controlPlane, p.paint(amber, "!")+" "+clean(e.Message))
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
	text := clean(e.Problem.String())
	switch {
	case e.Kind == mesh.ProblemSolved:
		text = p.paint(green, "✓") + " mended: " + text
	case e.Problem.Severity == config.Error:
		text = p.paint(red, "✗") + " " + text
	default:
		text = p.paint(amber, "!") + " " + text
	}
	p.line("configuration", text)
}

// exit tells how a process ended, with the last lines it wrote, which mostly say why, unless they were seen already.
func (p *Printer) exit(e mesh.Event, logs bool) {
	mark := p.paint(amber, "!")
	if e.Kind == mesh.Failed {
		mark = p.paint(red, "✗")
	}
	p.line(e.Instance, mark+" "+clean(e.Message))
	if e.Exit == nil || e.Exit.Clean() || (logs && e.Origin == mesh.OriginWorkload) {
		return
	}
	for _, tail := range e.Exit.Tail {
		p.line(e.Instance, p.paint(dim, "  "+clean(tail)))
	}
}

// routine recognises what agent and control plane (log/slog) and Envoy log when all is well.
var routine = regexp.MustCompile(`^time=\S+ level=(INFO|DEBUG)|"level":"(INFO|DEBUG)"|^\[[^\]]*\]\[[^\]]*\]\[(info|debug|trace)\]`)

func (p *Printer) log(e mesh.Event) {
	text := clean(e.Line)
	if e.Origin != mesh.OriginWorkload {
		if !p.Verbose && (p.stopping && e.Origin != mesh.OriginMesh || routine.MatchString(text)) {
			return
		}
		text = p.paint(dim, text)
	}
	name := e.Instance
	if e.Origin == mesh.OriginControlPlane {
		name = controlPlane
	}
	p.line(name, text)
}

// controlPlane stands where a workload's name would.
const controlPlane = "control plane"

// line writes text behind the name of whose it is.
func (p *Printer) line(name, text string) {
	if name == "" {
		name = "mesh"
	}
	fmt.Fprintf(p.out, "%s %s\n", p.paint(p.colourOf(name), fmt.Sprintf("%-*s │", p.width, name)), text)
}

// colourOf gives each name a colour of its own as long as there are some.
func (p *Printer) colourOf(name string) string {
	if _, ok := p.chosen[name]; !ok {
		p.chosen[name] = palette[len(p.chosen)%len(palette)]
	}
	return p.chosen[name]
}

// Bold is text that stands out.
func (p *Printer) Bold(text string) string { return p.paint(bold, text) }

func (p *Printer) paint(colour, text string) string {
	if !p.colours {
		return text
	}
	return colour + text + reset
}

// escape is a control sequence, such as a colour: without its first character it would be noise.
var escape = regexp.MustCompile("\x1b(\\[[0-9;?]*[ -/]*[@-~]|[^\\[])?")

// clean keeps the output of a process from steering the terminal.
func clean(line string) string {
	if strings.ContainsRune(line, '\x1b') {
		line = escape.ReplaceAllString(line, "")
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return -1
		}
		return r
	}, line)
}

// Duration is a time as a person wants it: "87 ms", "1.24 s", "2m5s".
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
