package snapshot

import (
	"maps"
	"slices"

	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// TokenRules is a document of kind RequestAuthentication.
type TokenRules struct {
	*config.Resource
	Spec *security.RequestAuthentication
}

// KeySets contains the fetched keys of issuers as JWK sets, by the URL that config.KeySetURL returns. It is immutable:
// a change creates a new KeySets.
type KeySets struct{ ByAddress map[string]string }

func (k *KeySets) get(address string) (string, bool) {
	if k == nil {
		return "", false
	}
	set, ok := k.ByAddress[address]
	return set, ok
}

// requestAuth contains all RequestAuthentications by namespace. Each list is sorted by name.
type requestAuth struct {
	root        string
	byNamespace map[string][]TokenRules
	// addresses are the sorted URLs of the keys.
	addresses []string
}

func newRequestAuth(resources []*config.Resource, rootNamespace string) *requestAuth {
	a := &requestAuth{root: rootNamespace, byNamespace: map[string][]TokenRules{}}
	addresses := map[string]struct{}{}
	for _, r := range resources {
		spec := r.Spec.(*security.RequestAuthentication)
		a.byNamespace[r.Namespace] = append(a.byNamespace[r.Namespace], TokenRules{Resource: r, Spec: spec})
		for _, rule := range spec.GetJwtRules() {
			if address := config.KeySetURL(rule); address != "" {
				addresses[address] = struct{}{}
			}
		}
	}
	a.addresses = slices.Sorted(maps.Keys(addresses))
	return a
}

// TokenRules returns the RequestAuthentications of a workload: first those of the root namespace, then those of the
// workload's own namespace, each sorted by name.
func (s *Snapshot) TokenRules(namespace string, labels map[string]string) []TokenRules {
	a := s.requestAuth
	var out []TokenRules
	for _, list := range [][]TokenRules{a.byNamespace[a.root], a.byNamespace[namespace]} {
		for _, r := range list {
			if PolicyApplies(r.Spec, r.Namespace == namespace, labels) {
				out = append(out, r)
			}
		}
		if namespace == a.root {
			break
		}
	}
	return out
}

// Keys returns the JWK set that was fetched from address. It returns false if none was fetched.
func (s *Snapshot) Keys(address string) (string, bool) { return s.keys.get(address) }

// KeyAddresses returns the sorted URLs of the keys in RequestAuthentications.
func (s *Snapshot) KeyAddresses() []string { return s.requestAuth.addresses }

// KeyUser identifies a rule of a RequestAuthentication that uses a certain key set.
type KeyUser struct {
	*config.Resource
	// Field is the rule's field path.
	Field string
}

// KeyUsers returns the rules that use the key set at address.
func (s *Snapshot) KeyUsers(address string) []KeyUser {
	var out []KeyUser
	for _, r := range s.resources[config.RequestAuthentication] {
		for i, rule := range r.Spec.(*security.RequestAuthentication).GetJwtRules() {
			if config.KeySetURL(rule) == address {
				out = append(out, KeyUser{r, config.JWTRuleField(i)})
			}
		}
	}
	return out
}

// diffKeys adds to the change the RequestAuthentications whose fetched keys changed.
func (c *Change) diffKeys(prev, next *Snapshot) {
	if prev.keys == next.keys {
		return
	}
	for _, r := range next.resources[config.RequestAuthentication] {
		for _, rule := range r.Spec.(*security.RequestAuthentication).GetJwtRules() {
			address := config.KeySetURL(rule)
			before, had := prev.Keys(address)
			now, has := next.Keys(address)
			if address != "" && (had != has || before != now) {
				c.addResource(r)
				break
			}
		}
	}
}
