package config

import (
	"maps"
	"slices"
	"strings"
)

// FormatLabels formats labels as kubectl does: "key=value" pairs in the order of the keys, separated by commas.
func FormatLabels(labels map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ",")
}
