package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// didYouMean returns a remedy for an unknown name: the most similar name, or all names if there are few.
func didYouMean(name string, among []string) string {
	if match := suggest.Name(name, among); match != "" {
		return fmt.Sprintf("did you mean %s?", match)
	}
	return "one of: " + joinNames(among)
}

// joinNames lists names in order, shortened if there are many.
func joinNames(names []string) string {
	const most = 16
	names = slices.Sorted(slices.Values(names))
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
