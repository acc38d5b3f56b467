package snapshot

import (
	"reflect"
	"sort"
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Endpoint is one place where one port of a service is served.
type Endpoint struct {
	*registry.Endpoint
	// MTLS says that callers use mutual TLS there: a sidecar with a mesh identity answers, and no PeerAuthentication
	// turned mutual TLS off.
	MTLS bool
}

// Instances is where a service is served, as one caller or another sees it. Immutable: while a service's endpoints stay
// the same, so does the pointer.
type Instances struct {
	Endpoints []Endpoint
	// Datagrams are the places of ports of UDP, which names alone lead to.
	Datagrams []registry.Endpoint
	facts     map[uint32]*Facts
	source    []registry.Endpoint
}

// Facts are what the cluster of a service's port depends on of its endpoints. Immutable: while they are equal, so is the
// pointer, however the endpoints change.
type Facts struct {
	// Identities are the SPIFFE IDs that endpoints with mutual TLS may prove, sorted. Empty when they are not known: then
	// any identity of the mesh is accepted.
	Identities []string
	// AllMTLS: mutual TLS is in force at every endpoint. A service of the mesh that has no endpoints yet is taken to be
	// so, lest its cluster changes as soon as the first one comes.
	AllMTLS bool
}

// Facts are those of a port of the service; never nil.
func (i *Instances) Facts(port uint32) *Facts {
	if i != nil {
		if f := i.facts[port]; f != nil {
			return f
		}
	}
	return &noFacts
}

var noFacts Facts

// instancesBuilder knows what instances depend on besides the registry.
type instancesBuilder struct {
	peerAuth    *peerAuth
	trustDomain string
}

// sameSource says whether instances were made of the same lists.
func (i *Instances) sameSource(eps, datagrams []registry.Endpoint) bool {
	return i != nil && sameSlice(i.source, eps) && sameSlice(i.Datagrams, datagrams)
}

func sameSlice(a, b []registry.Endpoint) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// build makes the instances of a service; old, which may be nil, is given back when nothing differs.
func (b instancesBuilder) build(svc *registry.Service, eps, datagrams []registry.Endpoint, old *Instances) *Instances {
	in := &Instances{source: eps, Endpoints: make([]Endpoint, len(eps)), Datagrams: datagrams, facts: make(map[uint32]*Facts, len(svc.Ports))}
	for i := range eps {
		e := &eps[i]
		mtls := e.MTLS && !svc.External && b.peerAuth.mode(e.Namespace, e.Labels, e.Port) != Disable
		in.Endpoints[i] = Endpoint{Endpoint: e, MTLS: mtls}
	}
	for _, p := range svc.Ports {
		facts := b.facts(svc, p.Number, in.Endpoints)
		if before := old.Facts(p.Number); reflect.DeepEqual(facts, before) {
			facts = before
		}
		in.facts[p.Number] = facts
	}
	if old != nil && equalInstances(in, old) {
		old.source = eps // not seen by anyone but the next build
		return old
	}
	return in
}

func (b instancesBuilder) facts(svc *registry.Service, port uint32, eps []Endpoint) *Facts {
	f := &Facts{}
	found, all, anonymous := false, true, false
	type account struct{ namespace, name string }
	accounts, ids := map[account]struct{}{}, map[string]struct{}{}
	for _, e := range eps {
		if e.ServicePort != port {
			continue
		}
		found = true
		if !e.MTLS {
			all = false
			if e.Endpoint.MTLS || e.ServiceAccount == "" {
				continue
			}
			// Such as a gateway: where a rule has callers use the mesh's TLS to it, it shows its identity.
		}
		if e.ServiceAccount == "" {
			anonymous = true
			continue
		}
		accounts[account{e.Namespace, e.ServiceAccount}] = struct{}{}
	}
	for a := range accounts {
		ids[SPIFFEID(b.trustDomain, a.namespace, a.name)] = struct{}{}
	}
	for _, id := range svc.SubjectAltNames {
		ids[id] = struct{}{}
	}
	if !anonymous || len(svc.SubjectAltNames) > 0 {
		for id := range ids {
			f.Identities = append(f.Identities, id)
		}
		sort.Strings(f.Identities)
	}
	hoped := !found && svc.Selector != nil && !svc.External
	f.AllMTLS = hoped || found && all
	return f
}

// SPIFFEID is the identity of a service account.
func SPIFFEID(trustDomain, namespace, serviceAccount string) string {
	return "spiffe://" + trustDomain + "/ns/" + namespace + "/sa/" + serviceAccount
}

func equalInstances(a, b *Instances) bool {
	if len(a.Endpoints) != len(b.Endpoints) || !sameSlice(a.Datagrams, b.Datagrams) {
		return false
	}
	for i := range a.Endpoints {
		x, y := a.Endpoints[i], b.Endpoints[i]
		if x.MTLS != y.MTLS || !reflect.DeepEqual(x.Endpoint, y.Endpoint) {
			return false
		}
	}
	return true
}
