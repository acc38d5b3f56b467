package logging

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// envoyLevelNames are the log levels of Envoy's admin interface.
var envoyLevelNames = []string{"trace", "debug", "info", "warning", "error", "critical", "off"}

// EnvoyLevels contains log levels of Envoy. If all is not empty, it is the level of each component that the map
// components does not list.
type EnvoyLevels struct {
	all        string
	components map[string]string
}

// ParseEnvoyLevels parses "level,component:level,…" in the syntax of --proxyLogLevel. Later entries override earlier
// ones.
func ParseEnvoyLevels(flag, text string) (EnvoyLevels, error) {
	l := EnvoyLevels{components: map[string]string{}}
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
			return l, fmt.Errorf("%s: %q is not a log level of Envoy%s; use one of %s", flag, level,
				orDidYouMean(level, envoyLevelNames), strings.Join(envoyLevelNames, ", "))
		case component == "":
			l.all = level
		default:
			l.components[component] = level
		}
	}
	return l, nil
}

// merge returns l with change applied. If change.all is not empty, the result contains no component levels of l.
func (l EnvoyLevels) merge(change EnvoyLevels) EnvoyLevels {
	merged := EnvoyLevels{all: l.all, components: maps.Clone(l.components)}
	if change.all != "" {
		merged = EnvoyLevels{all: change.all}
	}
	if merged.components == nil {
		merged.components = map[string]string{}
	}
	maps.Copy(merged.components, change.components)
	return merged
}

// adminLevels returns the arguments for the calls of SetLogLevel that set these levels. Each element is one call.
func (l EnvoyLevels) adminLevels() []string {
	var calls []string
	if l.all != "" {
		calls = append(calls, l.all)
	}
	if len(l.components) > 0 {
		calls = append(calls, l.componentList())
	}
	return calls
}

func (l EnvoyLevels) componentList() string {
	var entries []string
	for _, c := range slices.Sorted(maps.Keys(l.components)) {
		entries = append(entries, c+":"+l.components[c])
	}
	return strings.Join(entries, ",")
}

// String returns the levels in the syntax of --proxyLogLevel.
func (l EnvoyLevels) String() string { return strings.Join(l.adminLevels(), ",") }

// summarizeLevels returns the shortest equivalent of levels, which maps components to their levels. The field all of
// the result is the most frequent level, and the result lists only components with another level.
func summarizeLevels(levels map[string]string) EnvoyLevels {
	count := map[string]int{}
	for _, level := range levels {
		count[level]++
	}
	l := EnvoyLevels{components: map[string]string{}}
	if len(count) > 0 {
		l.all = slices.MaxFunc(slices.Sorted(maps.Keys(count)), func(a, b string) int { return cmp.Compare(count[a], count[b]) })
	}
	for component, level := range levels {
		if level != l.all {
			l.components[component] = level
		}
	}
	return l
}
