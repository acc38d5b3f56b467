package logging

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/logformat"
	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// levelNone is above the level of all messages, so that none is logged.
const levelNone = slog.Level(100)

// levelNames maps Istio's level names to levels. The agent logs no fatal messages, so "fatal" selects error.
var levelNames = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "warning": slog.LevelWarn,
	"error": slog.LevelError, "fatal": slog.LevelError, "none": levelNone,
}

// istioScopes maps scope names of Istio's agent to names of components.
var istioScopes = map[string]string{
	"ads": "xds", "xdsproxy": "xds", "delta": "xds", "grpc": "xds",
	"ca": "certificates", "cache": "certificates", "sds": "certificates", "citadelclient": "certificates",
	"secretfetcher": "certificates", "security": "certificates",
	"stsserver": "tokens", "token": "tokens",
	"healthcheck": "status", "server": "status",
}

// levelSet holds the minimum levels of messages: one for all components, and exceptions for single components. It is
// immutable once in use.
type levelSet struct {
	all        slog.Level
	components map[string]slog.Level
}

func (s levelSet) levelFor(part string) slog.Level {
	if level, ok := s.components[part]; ok {
		return level
	}
	return s.all
}

// merge returns s with change applied. If all is true, change has a level for all components, and the result contains
// no component levels of s.
func (s levelSet) merge(change levelSet, all bool) levelSet {
	merged := levelSet{all: s.all, components: maps.Clone(s.components)}
	if all {
		merged = levelSet{all: change.all}
	}
	if merged.components == nil {
		merged.components = map[string]slog.Level{}
	}
	maps.Copy(merged.components, change.components)
	return merged
}

// String returns the levels in the syntax of --log_output_level.
func (s levelSet) String() string {
	text := levelName(s.all)
	for _, part := range slices.Sorted(maps.Keys(s.components)) {
		if s.components[part] != s.all {
			text += "," + part + ":" + levelName(s.components[part])
		}
	}
	return text
}

func levelName(l slog.Level) string {
	if l >= levelNone {
		return "none"
	}
	return strings.ToLower(l.String())
}

// parseLevels parses Istio's "scope:level,…", or a single level for all scopes.
func parseLevels(flag, text string) (levelSet, error) {
	s, _, err := parseLevelChange(flag, text)
	return s, err
}

// parseLevelChange is parseLevels, and also reports whether text contains a level for all components.
func parseLevelChange(flag, text string) (s levelSet, all bool, err error) {
	s = levelSet{all: slog.LevelInfo, components: map[string]slog.Level{}}
	for entry := range strings.SplitSeq(text, ",") {
		scope, name, scoped := strings.Cut(strings.TrimSpace(entry), ":")
		if !scoped {
			scope, name = "default", scope
		}
		level, known := levelNames[name]
		if !known {
			return s, false, fmt.Errorf("%s: %q is not a log level%s; use debug, info, warn, error or none", flag, name, orDidYouMean(name, slices.Sorted(maps.Keys(levelNames))))
		}
		if scope == "default" || scope == "all" {
			s.all, all = level, true
			continue
		}
		s.components[componentForScope(scope)] = level
	}
	return s, all, nil
}

func componentForScope(scope string) string {
	if part, ok := istioScopes[scope]; ok {
		return part
	}
	return scope
}

// orDidYouMean returns a spelling suggestion for an unknown name, or "" if no name in among is similar.
func orDidYouMean(name string, among []string) string {
	if n := suggest.Name(name, among); n != "" {
		return fmt.Sprintf(" (did you mean %s?)", n)
	}
	return ""
}

// callerFilter parses text, the value of --log_caller. It returns a function that reports whether log lines of the
// component part include the caller (file and line).
func callerFilter(text string) func(part string) bool {
	scopes := strings.Split(text, ",")
	all := slices.Contains(scopes, "all") || slices.Contains(scopes, "default")
	for i, s := range scopes {
		scopes[i] = componentForScope(strings.TrimSpace(s))
	}
	return func(part string) bool { return all || part != "" && slices.Contains(scopes, part) }
}

// componentNames returns the names of the components that have loggers.
func (l *Log) componentNames() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.components))
}

func (l *Log) hasComponent(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.components[part]
}

// logHandler drops messages below the component's level, and adds caller and stack if that is configured.
type logHandler struct {
	slog.Handler
	log       *Log
	component string
}

// Enabled reports whether the component's messages of the level are logged.
func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.log.levels.Load().levelFor(h.component)
}

// Handle writes the message.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if src := r.Source(); src != nil && h.log.callers(h.component) {
		r = r.Clone()
		r.AddAttrs(slog.String(logformat.Caller, fmt.Sprintf("%s/%s:%d", filepath.Base(filepath.Dir(src.File)), filepath.Base(src.File), src.Line)))
	}
	if r.Level >= h.log.stack.levelFor(h.component) {
		r = r.Clone()
		r.AddAttrs(slog.String(logformat.Stack, string(debug.Stack())))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs returns a handler with the attributes. The attribute logformat.Scope sets the component.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	part := h.component
	for _, a := range attrs {
		if a.Key == logformat.Scope {
			part = a.Value.String()
			h.log.mu.Lock()
			h.log.components[part] = true
			h.log.mu.Unlock()
		}
	}
	return &logHandler{Handler: h.Handler.WithAttrs(attrs), log: h.log, component: part}
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{Handler: h.Handler.WithGroup(name), log: h.log, component: h.component}
}
