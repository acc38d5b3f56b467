package agent

import (
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"
)

// logOptions are the flags of Istio's agent for its own log.
type logOptions struct {
	json  bool
	level string
}

func (o *logOptions) addTo(f *pflag.FlagSet) {
	f.BoolVar(&o.json, "log_as_json", false, "log in JSON")
	f.StringVar(&o.level, "log_output_level", "default:info", "least severe messages of the agent's own log: debug, info, warn, error or none")
	inert(f, "log_caller", "log_stacktrace_level", "log_target", "vklog")
}

func (o *logOptions) logger(w io.Writer) (*slog.Logger, error) {
	level, err := parseLevel(o.level)
	if err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: level}
	if o.json {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}

// silent is above every level that is used.
const silent = slog.Level(100)

// parseLevel reads Istio's "scope:level,…" or a bare level. There are no scopes here: that of default counts, or of all.
func parseLevel(text string) (slog.Level, error) {
	level := slog.LevelInfo
	for entry := range strings.SplitSeq(text, ",") {
		scope, name, scoped := strings.Cut(strings.TrimSpace(entry), ":")
		if !scoped {
			scope, name = "default", scope
		}
		if scope != "default" && scope != "all" {
			continue
		}
		switch name {
		case "debug":
			level = slog.LevelDebug
		case "info":
			level = slog.LevelInfo
		case "warn", "warning":
			level = slog.LevelWarn
		case "error", "fatal":
			level = slog.LevelError
		case "none":
			level = silent
		default:
			return 0, usagef("--log_output_level: %q is not a level; use debug, info, warn, error or none", name)
		}
	}
	return level, nil
}
