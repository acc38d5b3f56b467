package analysis

import (
	"fmt"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// checkOverlap reports two documents with different selectors that match the same known workload. documents are of a
// kind of which only one document applies to a workload, in order of precedence.
func (c *snapshotCheck) checkOverlap(documents []*config.Resource) {
	inForce := map[config.Key]*config.Resource{} // by workload
	for _, r := range documents {
		s, _ := parseSelection(r)
		if len(s.labels) == 0 || s.targeted {
			continue
		}
		shared := map[*config.Resource][]string{} // workloads by the document that is in force for them
		workloads, _ := c.s.Registry.Workloads(r.Namespace, s.labels)
		for _, w := range workloads {
			if first := inForce[w.Key]; first == nil {
				inForce[w.Key] = r
			} else if other, _ := parseSelection(first); config.FormatLabels(other.labels) != config.FormatLabels(s.labels) {
				shared[first] = append(shared[first], w.Name)
			}
		}
		if len(shared) == 0 {
			continue
		}
		for _, first := range documents {
			if names := shared[first]; len(names) > 0 {
				slices.Sort(names)
				c.reportWarning(config.MultipleForWorkload, r, s.field, config.FormatLabels(s.labels),
					fmt.Sprintf("%s also selects %s (%s) and takes effect instead of this document, because it %s", describeResource(first),
						phrase.Count(len(names), "workload"), phrase.ListFirst(names, 4), config.ExplainPrecedence(first, r)),
					"merge the two documents, or use selectors that do not overlap")
			}
		}
	}
}
