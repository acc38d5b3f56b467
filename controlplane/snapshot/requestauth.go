package snapshot

import (
	"maps"
	"slices"

	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// TokenRules is one RequestAuthentication.
type TokenRules struct {
	*config.Resource
	Spec *security.RequestAuthentication
}

// KeySets are the keys of issuers that were fetched, as JWK sets by the addresses that config.KeysAddress gives.
// Immutable: a change is another KeySets.
type KeySets struct{ ByAddress map[string]string }

func (k *KeySets) get(address string) (string, bool) {
	if k == nil {
		return "", false
	}
	set, ok := k.ByAddress[address]
	return set, ok
}

// requestAuth is all RequestAuthentications by namespace, each list by name.
type requestAuth struct {
	root        string
	byNamespace map[string][]TokenRules
	// addresses are where keys are to be fetched, sorted.
	addresses []string
}

func newRequestAuth(resources []*config.Resource, rootNamespace string) *requestAuth {
	a := &requestAuth{root: rootNamespace, byNamespace: map[string][]TokenRules{}}
	addresses := map[string]struct{}{}
	for _, r := range resources {
		spec := r.Spec.(*security.RequestAuthentication)
		a.byNamespace[r.Namespace] = append(a.byNamespace[r.Namespace], TokenRules{Resource: r, Spec: spec})
		for _, rule := range spec.GetJwtRules() {
			if address := config.KeysAddress(rule); address != "" {
				addresses[address] = struct{}{}
			}
		}
	}
	a.addresses = slices.Sorted(maps.Keys(addresses))
	return a
}

// TokenRules are the RequestAuthentications that apply to a workload with these labels: those of the root namespace,
// then those of its own, by name.
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

// Keys is the JWK set that was fetched from an address; false when none ever was.
func (s *Snapshot) Keys(address string) (string, bool) { return s.keys.get(address) }

// KeyAddresses are where the keys are that RequestAuthentications refer to, sorted.
func (s *Snapshot) KeyAddresses() []string { return s.requestAuth.addresses }

// KeyUser is a rule that takes its keys from an address.
type KeyUser struct {
	*config.Resource
	// Field is the rule's place in the document.
	Field string
}

// KeyUsers are the rules that take their keys from an address.
func (s *Snapshot) KeyUsers(address string) []KeyUser {
	var out []KeyUser
	for _, r := range s.resources[config.RequestAuthentication] {
		for i, rule := range r.Spec.(*security.RequestAuthentication).GetJwtRules() {
			if config.KeysAddress(rule) == address {
				out = append(out, KeyUser{r, config.JWTRuleField(i)})
			}
		}
	}
	return out
}

// diffKeys adds the documents whose keys differ.
func (c *Change) diffKeys(prev, next *Snapshot) {
	if prev.keys == next.keys {
		return
	}
	for _, r := range next.resources[config.RequestAuthentication] {
		for _, rule := range r.Spec.(*security.RequestAuthentication).GetJwtRules() {
			address := config.KeysAddress(rule)
			before, had := prev.Keys(address)
			now, has := next.Keys(address)
			if address != "" && (had != has || before != now) {
				c.addResource(r)
				break
			}
		}
	}
}
