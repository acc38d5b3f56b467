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

// IsLabel reports whether key and value are a valid Kubernetes label.
func IsLabel(key, value string) bool { return isLabelKey(key) && labelValue.MatchString(value) }

func isLabelKey(key string) bool {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "", key
	}
	return labelName.MatchString(name) && (!ok || len(prefix) <= 253 && dnsSubdomain.MatchString(prefix))
}
