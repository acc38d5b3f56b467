package logging

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/internal/logformat"
)

// Options are the values of the agent's log flags. Istio's agent has the same flags.
type Options struct {
	// JSON selects JSON instead of text.
	JSON    bool
	level   string
	caller  string
	stack   string
	targets []string
}

// AddTo adds the flags to f.
func (o *Options) AddTo(f *pflag.FlagSet) {
	f.BoolVar(&o.JSON, "log_as_json", false, "log in JSON instead of text")
	f.StringVar(&o.level, "log_output_level", "default:info",
		"minimum level of the agent's log: debug, info, warn, error or none; also by scope, such as default:info,xds:debug")
	f.StringVar(&o.caller, "log_caller", "", "scopes whose messages include the caller (file:line), separated by commas, or all")
	f.StringVar(&o.stack, "log_stacktrace_level", "default:none", "minimum level of the messages that include a stack trace, with the syntax of --log_output_level")
	f.StringSliceVar(&o.targets, "log_target", []string{targetStderr}, "destinations of the agent's log: stderr, stdout or paths of files, separated by commas")
	f.String("vklog", "", "accepted for compatibility with Istio's pilot-agent; has no effect")
	_ = f.MarkHidden("vklog")
}

// AddHiddenFlags adds the flags that every command of Istio's agent accepts. The help does not list them, because they
// have no effect in commands without a log.
func AddHiddenFlags(f *pflag.FlagSet) { new(Options).AddHiddenTo(f) }

// AddHiddenTo adds the flags to f, and hides them in the help.
func (o *Options) AddHiddenTo(f *pflag.FlagSet) {
	hidden := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddTo(hidden)
	hidden.VisitAll(func(flag *pflag.Flag) { flag.Hidden = true })
	f.AddFlagSet(hidden)
}

// Open creates the log. The caller must close it.
func (o *Options) Open(stdout, stderr io.Writer) (*Log, error) {
	levels, err := parseLevels("--log_output_level", o.level)
	if err != nil {
		return nil, err
	}
	stack, err := parseLevels("--log_stacktrace_level", o.stack)
	if err != nil {
		return nil, err
	}
	stderrWriter := newStallWriter(stderr)
	target, err := openTarget(o.targets, newStallWriter(stdout), stderrWriter)
	if err != nil {
		return nil, err
	}
	l := &Log{stderr: stderrWriter, target: target, initial: levels, stack: stack, callers: callerFilter(o.caller), components: map[string]bool{}}
	l.levels.Store(&levels)
	l.Logger = slog.New(&logHandler{Handler: o.format(target), log: l})
	return l, nil
}

func (o *Options) format(w io.Writer) slog.Handler {
	if o.JSON {
		return logformat.NewJSON(w, slog.LevelDebug)
	}
	return logformat.NewText(w, slog.LevelDebug)
}

// Log is the agent's own log. Its levels can be changed at run time. It is safe for concurrent use.
type Log struct {
	*slog.Logger
	stderr  io.Writer
	target  *logTarget
	initial levelSet
	levels  atomic.Pointer[levelSet]
	stack   levelSet
	callers func(part string) bool

	mu         sync.Mutex
	components map[string]bool // names of the components that have a logger
}

// Reopen reopens the log files by name, for log rotation. If a file cannot be reopened, the log continues to use the
// old one.
func (l *Log) Reopen() error { return l.target.reopen() }

// WriteEnvoyLine writes a line of Envoy's output. It does not block if stderr blocks, because Envoy would then block
// when it writes output.
func (l *Log) WriteEnvoyLine(line string) { _, _ = io.WriteString(l.stderr, line+"\n") }

// Close closes the log files. Later messages are lost.
func (l *Log) Close() error { return l.target.close() }
