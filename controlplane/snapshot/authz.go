package snapshot

import (
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Policy is a document of kind AuthorizationPolicy.
type Policy struct {
	*config.Resource
	Spec *security.AuthorizationPolicy
}

// authz contains all AuthorizationPolicies by namespace. Each list is sorted by name.
type authz struct {
	root        string
	byNamespace map[string][]Policy
}

func newAuthz(resources []*config.Resource, rootNamespace string) *authz {
	a := &authz{root: rootNamespace, byNamespace: map[string][]Policy{}}
	for _, r := range resources {
		p := Policy{Resource: r, Spec: r.Spec.(*security.AuthorizationPolicy)}
		a.byNamespace[r.Namespace] = append(a.byNamespace[r.Namespace], p)
	}
	return a
}

// Policies returns the AuthorizationPolicies of a workload: first the policies of the root namespace, then the policies
// of the workload's own namespace, each sorted by name.
func (s *Snapshot) Policies(namespace string, labels map[string]string) []Policy {
	a := s.authz
	out := selectPolicies(nil, a.byNamespace[a.root], namespace, labels)
	if namespace != a.root {
		out = selectPolicies(out, a.byNamespace[namespace], namespace, labels)
	}
	return out
}

func selectPolicies(out, policies []Policy, namespace string, labels map[string]string) []Policy {
	for _, p := range policies {
		if PolicyApplies(p.Spec, p.Namespace == namespace, labels) {
			out = append(out, p)
		}
	}
	return out
}
