package agent

import (
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/pflag"
)

// logOptions are the flags of Istio's agent for its own log.
type logOptions struct {
	json    bool
	level   string
	caller  string
	stack   string
	targets []string
}

func (o *logOptions) addTo(f *pflag.FlagSet) {
	f.BoolVar(&o.json, "log_as_json", false, "log in JSON")
	f.StringVar(&o.level, "log_output_level", "default:info",
		"least severe messages of the agent's own log: debug, info, warn, error or none; of one part by its name (default:info,xds:debug)")
	f.StringVar(&o.caller, "log_caller", "", "parts whose messages tell the line of code they come from, or all")
	f.StringVar(&o.stack, "log_stacktrace_level", "default:none", "least severe messages that come with a stack trace, as --log_output_level")
	f.StringSliceVar(&o.targets, "log_target", []string{targetStderr}, "where the agent logs: stderr, stdout or a file; several with commas")
	inert(f, "vklog")
}

// globalFlags are those that every command of Istio's agent takes, also before its name. Commands without a log pass them over.
func globalFlags(f *pflag.FlagSet) {
	new(logOptions).addTo(f)
	f.VisitAll(func(flag *pflag.Flag) { flag.Hidden = true })
}

// open makes the log. It has to be closed where it may have files.
func (o *logOptions) open(stdout, stderr io.Writer) (*Log, error) {
	levels, err := parseLevels("--log_output_level", o.level)
	if err != nil {
		return nil, err
	}
	stack, err := parseLevels("--log_stacktrace_level", o.stack)
	if err != nil {
		return nil, err
	}
	patient := newPatientWriter(stderr)
	target, err := openTarget(o.targets, newPatientWriter(stdout), patient)
	if err != nil {
		return nil, err
	}
	l := &Log{stderr: patient, target: target, initial: levels, stack: stack, callers: callers(o.caller), parts: map[string]bool{}}
	l.levels.Store(&levels)
	l.Logger = slog.New(&logHandler{Handler: o.format(target), log: l})
	return l, nil
}

func (o *logOptions) format(w io.Writer) slog.Handler {
	if !o.json {
		return slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: lowerCaseLevel})
}

// lowerCaseLevel writes levels as Istio's agent does, for what reads the logs of both.
func lowerCaseLevel(groups []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey {
		a.Value = slog.StringValue(strings.ToLower(level.String()))
	}
	return a
}

// Log is the agent's own log. What it leaves out can be changed while the agent runs. It is safe for concurrent use.
type Log struct {
	*slog.Logger
	stderr  io.Writer
	target  *logTarget
	initial levelSet
	levels  atomic.Pointer[levelSet]
	stack   levelSet
	callers func(part string) bool

	mu    sync.Mutex
	parts map[string]bool // whose loggers were made
}

// Reopen opens the log's files again by their names, for whoever moved them away. A file that cannot be opened again is
// kept as it was.
func (l *Log) Reopen() error { return l.target.reopen() }

// envoyLine passes on what Envoy says. An Envoy whose output nobody takes would stand still.
func (l *Log) envoyLine(line string) { _, _ = io.WriteString(l.stderr, line+"\n") }

// Close closes the log's files; what is logged afterwards is lost.
func (l *Log) Close() error { return l.target.close() }
