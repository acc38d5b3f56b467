package analysis

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

var colours = map[config.Severity]string{config.Error: "\x1b[31m", config.Warning: "\x1b[33m", config.Info: "\x1b[2m"}

// WriteText writes the findings for people, file by file, with colours where told so.
func (r *Report) WriteText(out io.Writer, colour bool) error {
	var text strings.Builder
	file := "\x00"
	for _, f := range r.Findings {
		if f.At.File != file {
			if file != "\x00" {
				text.WriteByte('\n')
			}
			file = f.At.File
			fmt.Fprintln(&text, painted(colour, "\x1b[1m", plain(fileName(file))))
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
		fmt.Fprintf(&text, "  %-9s %s %s  %s  %s\n", place, painted(colour, colours[f.Severity], fmt.Sprintf("%-8s", f.Severity)),
			f.Code, plain(f.named()), plain(about))
		if f.Remedy != "" {
			fmt.Fprintf(&text, "  %28s→ %s\n", "", plain(f.Remedy))
		}
	}
	if len(r.Findings) > 0 {
		text.WriteByte('\n')
	}
	fmt.Fprintf(&text, "%s, %d in force: %s\n", counted(r.Documents, "document"), r.InForce, r.counts())
	_, err := io.WriteString(out, text.String())
	return err
}

// WriteLines writes a finding a line, as compilers do.
func (r *Report) WriteLines(out io.Writer) error {
	for _, f := range r.Findings {
		if _, err := fmt.Fprintln(out, plain(f.Problem.String())); err != nil {
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
		n := r.Summary[string(s)]
		parts = append(parts, counted(n, string(s)))
	}
	if r.Suppress > 0 {
		parts = append(parts, fmt.Sprintf("%d suppressed", r.Suppress))
	}
	return strings.Join(parts, ", ")
}

func counted(n int, what string) string {
	if n != 1 && what != string(config.Info) {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func fileName(file string) string {
	switch file {
	case "":
		return "(no file)"
	case "-":
		return "(what came in)"
	}
	return file
}

func painted(colour bool, with, text string) string {
	if !colour {
		return text
	}
	return with + text + "\x1b[0m"
}

// plain keeps what is in a document from steering the terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
