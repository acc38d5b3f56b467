package logformat

import (
	"fmt"
	"io"
	"log/slog"
)

// EnvoyJSON is Envoy's log format in the JSON format.
const EnvoyJSON = `{"level":"%l","time":"%Y-%m-%dT%T.%fZ","scope":"envoy %n","msg":"%j","caller":"%g:%#","thread":"%t"}`

// NewJSON returns a handler that writes messages of at least this level to out, as one JSON object per line. The names of
// the fields, the levels and the time are those of Istio's programs.
func NewJSON(out io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level, ReplaceAttr: replaceAttr})
}

func replaceAttr(groups []string, a slog.Attr) slog.Attr {
	switch {
	case len(groups) > 0:
	case a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime:
		a.Value = slog.StringValue(a.Value.Time().UTC().Format(timeFormat))
	case a.Key == slog.LevelKey:
		if level, ok := a.Value.Any().(slog.Level); ok {
			a.Value = slog.StringValue(levelName(level))
		}
	case a.Key == Scope:
		a.Key = "scope"
	}
	if text, ok := a.Value.Any().(fmt.Stringer); ok && a.Value.Kind() == slog.KindAny {
		if _, isError := a.Value.Any().(error); !isError {
			a.Value = slog.StringValue(text.String())
		}
	}
	return a
}
