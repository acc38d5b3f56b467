package registry

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// bySeniority orders documents so that the one that wins a name comes first: Kubernetes Services, then by age, then by
// namespace and name.
func bySeniority(sources []*source) []*source {
	sorted := slices.Clone(sources)
	slices.SortStableFunc(sorted, func(a, b *source) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			a.resource.Created.Compare(b.resource.Created),
			cmp.Compare(a.resource.Namespace, b.resource.Namespace),
			cmp.Compare(a.resource.Name, b.resource.Name),
		)
	})
	return sorted
}

func rank(s *source) int {
	if s.resource.Kind == config.Service {
		return 0
	}
	return 1
}

// rivalOf is the service that goes before this one for some caller: one of the same namespace, or one of another that
// everyone sees as well.
func rivalOf(service *Service, elders []*Service) *Service {
	for _, elder := range elders {
		if elder.Namespace == service.Namespace {
			return elder
		}
	}
	for _, elder := range elders {
		if ForAll(elder.ExportTo) && ForAll(service.ExportTo) {
			return elder
		}
	}
	return nil
}

// ForAll says whether an exportTo list is for all namespaces.
func ForAll(exportTo []string) bool { return len(exportTo) == 0 || slices.Contains(exportTo, "*") }

func rivalry(s *source, i int, rival *Service, owner *source) config.Problem {
	field := "spec.hosts"
	message := fmt.Sprintf("%s, at %s, has this host already and is older, so that this one is not used for it", rival.Source, owner.resource.Origin)
	if rival.Namespace != s.resource.Namespace {
		message = fmt.Sprintf("%s, at %s, has this host too; callers outside both namespaces use that one, which is older", rival.Source, owner.resource.Origin)
	}
	return coded(config.ServiceHostTaken, problemAt(s.resource, field, s.services[i].Hostname, message,
		"join the two into one document, or limit each to its namespace by exportTo"))
}
