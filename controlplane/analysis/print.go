package analysis

import (
	"fmt"
	"io"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

var colours = map[config.Severity]terminal.Colour{config.Error: terminal.Red, config.Warning: terminal.Amber, config.Info: terminal.Dim}

// Text returns the findings as text, ordered by file. The text is escaped.
func (r *Report) Text(format terminal.Format) string {
	var text strings.Builder
	file := "\x00"
	for _, f := range r.Findings {
		if f.At.File != file {
			if file != "\x00" {
				text.WriteByte('\n')
			}
			file = f.At.File
			fmt.Fprintln(&text, format.Paint(terminal.Bold, termtext.Escape(fileName(file))))
		}
		place := ""
		switch {
		case f.At.Column > 0:
			place = fmt.Sprintf("%d:%d", f.At.Line, f.At.Column)
		case f.At.Line > 0:
			place = fmt.Sprint(f.At.Line)
		}
		about := f.Message
		if f.Value != "" {
			about = fmt.Sprintf("%q: %s", f.Value, about)
		}
		switch {
		case f.Field != "" && f.Value != "":
			about = f.Field + " " + about
		case f.Field != "":
			about = f.Field + ": " + about
		}
		fmt.Fprintf(&text, "  %-9s %s %s  %s  %s\n", place, format.Paint(colours[f.Severity], fmt.Sprintf("%-8s", f.Severity)),
			f.Code, termtext.Escape(f.named()), termtext.Escape(about))
		if f.Remedy != "" {
			fmt.Fprintf(&text, "  %28s→ %s\n", "", termtext.Escape(f.Remedy))
		}
	}
	if len(r.Findings) > 0 {
		text.WriteByte('\n')
	}
	fmt.Fprintf(&text, "%s, %d in force: %s\n", phrase.Count(r.Documents, "document"), r.InForce, r.counts())
	return text.String()
}

// WriteLines writes one line per finding, in the format of compilers.
func (r *Report) WriteLines(out io.Writer) error {
	for _, f := range r.Findings {
		if _, err := fmt.Fprintln(out, termtext.Escape(f.Problem.String())); err != nil {
			return err
		}
	}
	return nil
}

func (f Finding) named() string {
	if f.Key.Kind == "" && f.Key.Name == "" {
		return "-"
	}
	return f.Key.String()
}

func (r *Report) counts() string {
	var parts []string
	for _, s := range []config.Severity{config.Error, config.Warning, config.Info} {
		if n := r.Summary[string(s)]; s == config.Info {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		} else {
			parts = append(parts, phrase.Count(n, string(s)))
		}
	}
	if r.Suppress > 0 {
		parts = append(parts, fmt.Sprintf("%d suppressed", r.Suppress))
	}
	return strings.Join(parts, ", ")
}

func fileName(file string) string {
	switch file {
	case "":
		return "(no file)"
	case "-":
		return "(stdin)"
	}
	return file
}
