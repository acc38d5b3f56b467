package analysis

import (
	"fmt"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// maxSuggestions limits the searches for similar names. If a mesh has more unknown names, the cause is not a
// misspelling.
const maxSuggestions = 50

// suggestName returns the name in names that is most similar to written, or "" if none is similar.
func (c *snapshotCheck) suggestName(written string, names []string) string {
	if c.suggestions == 0 {
		return ""
	}
	c.suggestions--
	return nearestHost(written, names)
}

// suggestHost returns the remedy for an unknown host. If another host name is similar, the remedy suggests this name.
func (c *snapshotCheck) suggestHost(host, namespace string) string {
	var names []string
	for _, svc := range c.s.Registry.Services {
		if !svc.VisibleTo(namespace) {
			continue
		}
		for known := range svc.WithAliases() {
			names = append(names, known.Hostname)
			if known.Kubernetes && known.Namespace == namespace {
				names = append(names, known.Name)
			}
		}
	}
	if n := c.suggestName(host, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return "add a Service or a ServiceEntry of this name, or correct the host"
}

// nearestHost returns the candidate that is most similar to the misspelled host written, or "" if none is similar. The
// permitted distance depends on the length of the first label, because the other labels are long and common to many
// hosts.
func nearestHost(written string, candidates []string) string {
	first, _, _ := strings.Cut(written, ".")
	if len(first) <= 2 {
		return suggest.ClosestWithin(written, candidates, 1)
	}
	return suggest.ClosestWithin(written, candidates, max(2, len(first)/3))
}
