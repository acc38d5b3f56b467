package snapshot

import (
	"maps"
	"slices"
	"strings"
)

// labelText formats labels as kubectl does.
func labelText(labels map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ",")
}
