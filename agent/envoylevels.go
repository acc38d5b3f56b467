package agent

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// envoyLevelNames are the levels that Envoy's admin interface takes.
var envoyLevelNames = []string{"trace", "debug", "info", "warning", "error", "critical", "off"}

// envoyLevels are levels of Envoy's log: of all components, where that is not empty, and then of some.
type envoyLevels struct {
	all        string
	components map[string]string
}

// parseEnvoyLevels reads "level,component:level,…" as --proxyLogLevel takes it; a later entry goes over an earlier one.
func parseEnvoyLevels(flag, text string) (envoyLevels, error) {
	l := envoyLevels{components: map[string]string{}}
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		component, level, scoped := strings.Cut(entry, ":")
		if !scoped {
			component, level = "", entry
		}
		if level == "warn" {
			level = "warning"
		}
		switch {
		case entry == "":
		case !slices.Contains(envoyLevelNames, level):
			return l, usagef("%s: %q is not a level of Envoy's%s; use one of %s", flag, level,
				orDidYouMean(level, envoyLevelNames), strings.Join(envoyLevelNames, ", "))
		case component == "":
			l.all = level
		default:
			l.components[component] = level
		}
	}
	return l, nil
}

// with are these levels and others over them. A level for all components replaces those that some have.
func (l envoyLevels) with(change envoyLevels) envoyLevels {
	merged := envoyLevels{all: l.all, components: maps.Clone(l.components)}
	if change.all != "" {
		merged = envoyLevels{all: change.all}
	}
	if merged.components == nil {
		merged.components = map[string]string{}
	}
	maps.Copy(merged.components, change.components)
	return merged
}

// calls are the levels as Envoy's admin interface takes them, one call each.
func (l envoyLevels) calls() []string {
	var calls []string
	if l.all != "" {
		calls = append(calls, l.all)
	}
	if len(l.components) > 0 {
		calls = append(calls, l.list())
	}
	return calls
}

func (l envoyLevels) list() string {
	var entries []string
	for _, c := range sortedKeys(l.components) {
		entries = append(entries, c+":"+l.components[c])
	}
	return strings.Join(entries, ",")
}

// String is as --proxyLogLevel takes it.
func (l envoyLevels) String() string { return strings.Join(l.calls(), ",") }

// summary is the shortest way to tell the levels of many components: the one that most have, and then the others.
func summary(levels map[string]string) envoyLevels {
	count := map[string]int{}
	for _, level := range levels {
		count[level]++
	}
	l := envoyLevels{components: map[string]string{}}
	if len(count) > 0 {
		l.all = slices.MaxFunc(sortedKeys(count), func(a, b string) int { return cmp.Compare(count[a], count[b]) })
	}
	for component, level := range levels {
		if level != l.all {
			l.components[component] = level
		}
	}
	return l
}
