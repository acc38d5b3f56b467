package snapshot

import (
	"reflect"
	"slices"
	"sort"
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Endpoint is an endpoint of one port of a service.
type Endpoint struct {
	*registry.Endpoint
	// MTLS reports whether clients use mutual TLS. This requires that the endpoint has a sidecar with a mesh identity,
	// and that no PeerAuthentication disables mutual TLS.
	MTLS bool
}

// Instances contains the endpoints of a service. It is immutable. The pointer remains the same until the endpoints of
// the service change.
type Instances struct {
	Endpoints []Endpoint
	// UDPEndpoints are the endpoints of UDP ports. Clients reach them only by their names in DNS.
	UDPEndpoints []registry.Endpoint
	facts        map[uint32]*Facts
	source       []registry.Endpoint
	// gateways contains the endpoints for gateways. It is nil if gateways use all endpoints.
	gateways *Instances
}

// ForGateways returns the instances without the endpoints that only sidecars may use.
func (i *Instances) ForGateways() *Instances {
	if i == nil || i.gateways == nil {
		return i
	}
	return i.gateways
}

// Facts contains the properties of a port's endpoints on which its cluster depends. It is immutable. The pointer
// remains the same while the properties are equal.
type Facts struct {
	// Identities are the SPIFFE IDs of the endpoints with mutual TLS, sorted. If it is empty, the identities are
	// unknown, and clients accept any identity of the mesh.
	Identities []string
	// AllMTLS reports whether all endpoints use mutual TLS. It is also true for a service of the mesh without
	// endpoints, so that the first endpoint does not change the cluster.
	AllMTLS bool
}

// Facts returns the facts of a port; never nil.
func (i *Instances) Facts(port uint32) *Facts {
	if i != nil {
		if f := i.facts[port]; f != nil {
			return f
		}
	}
	return &noFacts
}

var noFacts Facts

// instancesBuilder contains the inputs, besides the registry, from which Instances are built.
type instancesBuilder struct {
	peerAuth    *peerAuth
	trustDomain string
}

// sameSource reports whether the instances were built from these slices.
func (i *Instances) sameSource(eps, datagrams []registry.Endpoint) bool {
	return i != nil && sameSlice(i.source, eps) && sameSlice(i.UDPEndpoints, datagrams)
}

func sameSlice(a, b []registry.Endpoint) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// build returns the instances of a service, or old if nothing differs. old may be nil.
func (b instancesBuilder) build(svc *registry.Service, eps, datagrams []registry.Endpoint, old *Instances) *Instances {
	in := &Instances{source: eps, Endpoints: make([]Endpoint, len(eps)), UDPEndpoints: datagrams, facts: make(map[uint32]*Facts, len(svc.Ports))}
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
		old.source = eps // only the next build reads this field
		return old
	}
	if slices.ContainsFunc(in.Endpoints, isNotForGateways) {
		gateways := *in
		gateways.Endpoints = slices.DeleteFunc(slices.Clone(in.Endpoints), isNotForGateways)
		in.gateways = &gateways
	}
	return in
}

func isNotForGateways(e Endpoint) bool { return e.NotForGateways }

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
			// Such a workload is, for example, a gateway. It presents its mesh identity if a DestinationRule makes
			// clients use the mesh's TLS.
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

// SPIFFEID returns the SPIFFE ID of a service account.
func SPIFFEID(trustDomain, namespace, serviceAccount string) string {
	return "spiffe://" + trustDomain + "/ns/" + namespace + "/sa/" + serviceAccount
}

func equalInstances(a, b *Instances) bool {
	if len(a.Endpoints) != len(b.Endpoints) || !sameSlice(a.UDPEndpoints, b.UDPEndpoints) {
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
