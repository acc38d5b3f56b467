package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

// didYouMean is a remedy for a name that does not exist: the nearest that does, or all of them when they are few.
func didYouMean(name string, among []string) string {
	if match := nearest.Name(name, among); match != "" {
		return fmt.Sprintf("did you mean %s?", match)
	}
	return "one of: " + list(among)
}

// list names a number of things in order, cut short where there are too many to read.
func list(names []string) string {
	const most = 16
	names = slices.Sorted(slices.Values(names))
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
