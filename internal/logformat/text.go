// Package logformat writes logs in the formats of Istio's programs, so that tools which parse those logs also parse the
// agent's.
package logformat

import (
	"bytes"
	"context"
	"encoding"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// Keys of attributes that TextHandler writes separately from the other attributes.
const (
	// Scope is the key of the attribute that names the component. Its name in the output is "scope".
	Scope = "part"
	// Caller is the key of the source file and line, and Stack that of the stack trace.
	Caller = "caller"
	Stack  = "stack"
)

// timeFormat is Istio's: UTC with microseconds.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// EnvoyText is Envoy's log format in the text format: time, level, scope with source line, message and thread.
const EnvoyText = "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"

// TextHandler is a slog handler for lines of tab-separated parts: time, level, scope, caller, message, and the attributes
// as key=value. Scope, caller and attributes are left out if there are none. A stack trace follows in further lines.
type TextHandler struct {
	mu    *sync.Mutex // guards out
	out   io.Writer
	level slog.Leveler

	scope  string
	attrs  string // of WithAttrs, formatted; begins with a space
	prefix string // the group names of WithGroup, each followed by a period
}

// NewText returns a handler that writes messages of at least this level to out.
func NewText(out io.Writer, level slog.Leveler) *TextHandler {
	return &TextHandler{mu: new(sync.Mutex), out: out, level: level}
}

// Enabled reports whether messages of the level are written.
func (h *TextHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

// Handle writes one message with a single call of Write.
func (h *TextHandler) Handle(_ context.Context, r slog.Record) error {
	l := line{scope: h.scope}
	l.attrs.WriteString(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		l.add(h.prefix, a)
		return true
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.out.Write(l.format(r))
	return err
}

// WithAttrs returns a handler that adds the attributes to each message.
func (h *TextHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	l := line{scope: h.scope}
	l.attrs.WriteString(h.attrs)
	for _, a := range attrs {
		l.add(h.prefix, a)
	}
	with := *h
	with.scope, with.attrs = l.scope, l.attrs.String()
	return &with
}

// WithGroup returns a handler that begins the keys of further attributes with the group's name and a period.
func (h *TextHandler) WithGroup(name string) slog.Handler {
	with := *h
	if name != "" {
		with.prefix += name + "."
	}
	return &with
}

// line collects the parts of a log line.
type line struct {
	scope, caller, stack string
	attrs                strings.Builder
}

func (l *line) add(prefix string, a slog.Attr) {
	value := a.Value.Resolve()
	switch {
	case a.Equal(slog.Attr{}):
	case value.Kind() == slog.KindGroup:
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range value.Group() {
			l.add(prefix, member)
		}
	case prefix == "" && a.Key == Scope:
		l.scope = value.String()
	case prefix == "" && a.Key == Caller:
		l.caller = value.String()
	case prefix == "" && a.Key == Stack:
		l.stack = value.String()
	default:
		l.attrs.WriteString(" " + quoteIfNeeded(prefix+a.Key) + "=" + quoteIfNeeded(valueText(value)))
	}
}

func (l *line) format(r slog.Record) []byte {
	var b bytes.Buffer
	b.WriteString(r.Time.UTC().Format(timeFormat) + "\t" + levelName(r.Level))
	for _, part := range []string{l.scope, l.caller, escape(r.Message), strings.TrimPrefix(l.attrs.String(), " ")} {
		if part != "" {
			b.WriteString("\t" + part)
		}
	}
	b.WriteByte('\n')
	if l.stack != "" {
		b.WriteString(strings.TrimRight(l.stack, "\n") + "\n")
	}
	return b.Bytes()
}

func levelName(level slog.Level) string { return strings.ToLower(level.String()) }

func valueText(v slog.Value) string {
	switch v.Kind() {
	case slog.KindTime:
		return v.Time().Format(time.RFC3339Nano)
	case slog.KindAny:
		if m, ok := v.Any().(encoding.TextMarshaler); ok {
			if text, err := m.MarshalText(); err == nil {
				return string(text)
			}
		}
		return fmt.Sprint(v.Any())
	}
	return v.String()
}

// quoteIfNeeded quotes text that would be ambiguous in a list of key=value.
func quoteIfNeeded(text string) string {
	if text == "" || strings.ContainsAny(text, "\"= \t") || escape(text) != text {
		return strconv.Quote(text)
	}
	return text
}

// escape replaces control characters and invalid UTF-8 by escapes, so that a message cannot begin another line.
func escape(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
