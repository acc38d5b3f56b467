package registry

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// sortByPrecedence orders documents by their precedence for a hostname: Kubernetes Services are first. The order is
// then by age, namespace and name. In Istio, all ServiceEntries for a host have the same service name, so the namespace
// precedes the name.
func sortByPrecedence(sources []*source) []*source {
	sorted := slices.Clone(sources)
	slices.SortStableFunc(sorted, func(a, b *source) int {
		return cmp.Or(
			cmp.Compare(kindRank(a), kindRank(b)),
			a.resource.Created.Compare(b.resource.Created),
			cmp.Compare(a.resource.Namespace, b.resource.Namespace),
			cmp.Compare(a.resource.Name, b.resource.Name),
		)
	})
	return sorted
}

func kindRank(s *source) int {
	if s.resource.Kind == config.Service {
		return 0
	}
	return 1
}

// findConflict returns a service in preceding that takes precedence over service for some clients. The two services are
// in the same namespace, or are both visible to all namespaces. findConflict returns nil if there is no such service.
func findConflict(service *Service, preceding []*Service) *Service {
	for _, other := range preceding {
		if other.Namespace == service.Namespace {
			return other
		}
	}
	for _, other := range preceding {
		if IsExportedToAll(other.ExportTo) && IsExportedToAll(service.ExportTo) {
			return other
		}
	}
	return nil
}

// IsExportedToAll reports whether an exportTo list includes all namespaces.
func IsExportedToAll(exportTo []string) bool {
	return len(exportTo) == 0 || slices.Contains(exportTo, "*")
}

func conflictProblem(s *source, i int, winner *Service, owner *source) config.Problem {
	field, reason := "spec.hosts", config.ExplainPrecedence(owner.resource, s.resource)
	if kindRank(owner) < kindRank(s) {
		reason = "is a Kubernetes Service"
	}
	message := fmt.Sprintf("%s, at %s, has the same host and takes precedence because it %s, so proxies do not use this service", winner.Source, owner.resource.Origin, reason)
	if winner.Namespace != s.resource.Namespace {
		message = fmt.Sprintf("%s, at %s, has the same host; clients outside both namespaces use %[1]s, because it %[3]s", winner.Source, owner.resource.Origin, reason)
	}
	return withCode(config.ServiceHostConflict, problemAt(s.resource, field, s.services[i].Hostname, message,
		"merge the two documents, or limit each to its namespace with exportTo"))
}
