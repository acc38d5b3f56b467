package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// didYouMean returns a remedy for an unknown name: the most similar name in among, or the list of names.
func didYouMean(name string, among []string) string {
	if match := suggest.Name(name, among); match != "" {
		return fmt.Sprintf("did you mean %s?", match)
	}
	return "one of: " + joinNames(among)
}

// joinNames joins the sorted names by commas. It lists only the first maxNames.
func joinNames(names []string) string {
	const maxNames = 16
	names = slices.Sorted(slices.Values(names))
	if len(names) > maxNames {
		return strings.Join(names[:maxNames], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
