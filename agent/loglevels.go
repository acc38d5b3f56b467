package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

// silent is above every level that is used.
const silent = slog.Level(100)

// The levels by Istio's names. Nothing here is fatal, so that level is error's.
var levelNames = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "warning": slog.LevelWarn,
	"error": slog.LevelError, "fatal": slog.LevelError, "none": silent,
}

// istioScopes are names that Istio's agent has for the subjects of parts.
var istioScopes = map[string]string{
	"ads": "xds", "xdsproxy": "xds", "delta": "xds", "grpc": "xds",
	"ca": "certificates", "cache": "certificates", "sds": "certificates", "citadelclient": "certificates",
	"secretfetcher": "certificates", "security": "certificates",
	"stsserver": "tokens", "token": "tokens",
	"healthcheck": "status", "server": "status",
}

// levelSet says what the least severe messages are that are logged: of all parts, and of those that have a level of
// their own. It is not changed once it is in use.
type levelSet struct {
	all   slog.Level
	parts map[string]slog.Level
}

func (s levelSet) of(part string) slog.Level {
	if level, ok := s.parts[part]; ok {
		return level
	}
	return s.all
}

// with are these levels and others over them. A level for all parts replaces those that some have.
func (s levelSet) with(change levelSet, all bool) levelSet {
	merged := levelSet{all: s.all, parts: maps.Clone(s.parts)}
	if all {
		merged = levelSet{all: change.all}
	}
	if merged.parts == nil {
		merged.parts = map[string]slog.Level{}
	}
	maps.Copy(merged.parts, change.parts)
	return merged
}

// String is as --log_output_level takes it.
func (s levelSet) String() string {
	text := levelName(s.all)
	for _, part := range sortedKeys(s.parts) {
		if s.parts[part] != s.all {
			text += "," + part + ":" + levelName(s.parts[part])
		}
	}
	return text
}

func levelName(l slog.Level) string {
	if l >= silent {
		return "none"
	}
	return strings.ToLower(l.String())
}

// parseLevels reads Istio's "scope:level,…", or a bare level for all.
func parseLevels(flag, text string) (levelSet, error) {
	s, _, err := parseLevelChange(flag, text)
	return s, err
}

// parseLevelChange says too whether there is a level for all parts.
func parseLevelChange(flag, text string) (s levelSet, all bool, err error) {
	s = levelSet{all: slog.LevelInfo, parts: map[string]slog.Level{}}
	for entry := range strings.SplitSeq(text, ",") {
		scope, name, scoped := strings.Cut(strings.TrimSpace(entry), ":")
		if !scoped {
			scope, name = "default", scope
		}
		level, known := levelNames[name]
		if !known {
			return s, false, usagef("%s: %q is not a level%s; use debug, info, warn, error or none", flag, name, orDidYouMean(name, sortedKeys(levelNames)))
		}
		if scope == "default" || scope == "all" {
			s.all, all = level, true
			continue
		}
		s.parts[partOfScope(scope)] = level
	}
	return s, all, nil
}

func partOfScope(scope string) string {
	if part, ok := istioScopes[scope]; ok {
		return part
	}
	return scope
}

// orDidYouMean is a suggestion for a name that is not known, or nothing.
func orDidYouMean(name string, among []string) string {
	if n := nearest.Name(name, among); n != "" {
		return fmt.Sprintf(" (did you mean %s?)", n)
	}
	return ""
}

// callers says for which parts the place in the code is logged.
func callers(text string) func(part string) bool {
	scopes := strings.Split(text, ",")
	all := slices.Contains(scopes, "all") || slices.Contains(scopes, "default")
	for i, s := range scopes {
		scopes[i] = partOfScope(strings.TrimSpace(s))
	}
	return func(part string) bool { return all || part != "" && slices.Contains(scopes, part) }
}

// known are the parts that have loggers.
func (l *Log) known() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return sortedKeys(l.parts)
}

func (l *Log) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts[part]
}

// logHandler leaves out what is less severe than its part's level, and adds what the flags ask for.
type logHandler struct {
	slog.Handler
	log  *Log
	part string
}

// Enabled says whether messages of the level are logged now.
func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.log.levels.Load().of(h.part)
}

// Handle writes the message.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if src := r.Source(); src != nil && h.log.callers(h.part) {
		r = r.Clone()
		r.AddAttrs(slog.String("caller", fmt.Sprintf("%s/%s:%d", filepath.Base(filepath.Dir(src.File)), filepath.Base(src.File), src.Line)))
	}
	if r.Level >= h.log.stack.of(h.part) {
		r = r.Clone()
		r.AddAttrs(slog.String("stack", string(debug.Stack())))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs makes a part's handler of one that gets the part's name.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	part := h.part
	for _, a := range attrs {
		if a.Key == "part" {
			part = a.Value.String()
			h.log.mu.Lock()
			h.log.parts[part] = true
			h.log.mu.Unlock()
		}
	}
	return &logHandler{Handler: h.Handler.WithAttrs(attrs), log: h.log, part: part}
}

// WithGroup opens a group.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{Handler: h.Handler.WithGroup(name), log: h.log, part: h.part}
}
