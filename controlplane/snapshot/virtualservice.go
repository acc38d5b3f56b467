package snapshot

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// MeshGateway is the name by which a VirtualService means all sidecars.
const MeshGateway = "mesh"

// VirtualService is one VirtualService with its names resolved. Immutable.
type VirtualService struct {
	*config.Resource
	// Spec is what the document says, with the routes of its delegates in their places.
	Spec *networking.VirtualService
	// Hosts are its hosts as full names, in their order.
	Hosts []string
	// Gateways are the gateways it is for: "mesh", or "namespace/name".
	Gateways []string
	exportTo []string
	// from are the delegates whose routes are among its own.
	from []*config.Resource
}

// For says whether the rules are for a gateway ("mesh" for sidecars).
func (v *VirtualService) For(gateway string) bool {
	for _, g := range v.Gateways {
		if g == gateway {
			return true
		}
	}
	return false
}

// VisibleTo says whether a proxy of the namespace may see it.
func (v *VirtualService) VisibleTo(namespace string) bool {
	return exportedTo(v.exportTo, v.Namespace, namespace)
}

// AsksNamespace says whether any of its HTTP routes is for callers of some namespace only.
func (v *VirtualService) AsksNamespace() bool {
	if v == nil {
		return false
	}
	return slices.ContainsFunc(v.Spec.GetHttp(), func(r *networking.HTTPRoute) bool {
		return slices.ContainsFunc(r.GetMatch(), func(m *networking.HTTPMatchRequest) bool { return m.GetSourceNamespace() != "" })
	})
}

// RuleVisibleTo says whether a proxy of the namespace may see a VirtualService or DestinationRule, present or past.
func (s *Snapshot) RuleVisibleTo(r *config.Resource, namespace string) bool {
	var exportTo, otherwise []string
	switch spec := r.Spec.(type) {
	case *networking.VirtualService:
		exportTo, otherwise = spec.GetExportTo(), s.Mesh.GetDefaultVirtualServiceExportTo()
	case *networking.DestinationRule:
		exportTo, otherwise = spec.GetExportTo(), s.Mesh.GetDefaultDestinationRuleExportTo()
	}
	if len(exportTo) == 0 {
		exportTo = otherwise
	}
	return exportedTo(exportTo, r.Namespace, namespace)
}

// GatewayName gives the full name ("namespace/name") of a gateway as a document of the namespace writes it.
func GatewayName(written, namespace string) string {
	if written == MeshGateway || strings.Contains(written, "/") {
		return written
	}
	return namespace + "/" + written
}

// resolver gives the full name of a host as a document of the namespace writes it.
type resolver func(host, namespace string) string

func newVirtualService(r *config.Resource, others *delegates, resolve resolver, defaultExportTo []string) *VirtualService {
	spec, from := others.expand(r)
	v := &VirtualService{Resource: r, Spec: spec, exportTo: spec.GetExportTo(), from: from}
	if len(v.exportTo) == 0 {
		v.exportTo = defaultExportTo
	}
	for _, h := range spec.GetHosts() {
		v.Hosts = append(v.Hosts, resolve(h, r.Namespace))
	}
	for _, g := range spec.GetGateways() {
		v.Gateways = append(v.Gateways, GatewayName(g, r.Namespace))
	}
	if len(v.Gateways) == 0 {
		v.Gateways = []string{MeshGateway}
	}
	return v
}

// virtualServices is all VirtualServices, the oldest first.
type virtualServices struct {
	others    *delegates
	all       []*VirtualService
	byGateway map[string][]*VirtualService
}

// newVirtualServices indexes VirtualServices. sameNames says that what a name in them means is as it was for prev, which may be
// nil.
func newVirtualServices(prev *virtualServices, resources []*config.Resource, resolve resolver, exportTo []string, sameNames bool) *virtualServices {
	former := formerRules{}
	if prev != nil {
		former.all = prev.all
	}
	index := &virtualServices{byGateway: map[string][]*VirtualService{}}
	others := newDelegates(resources, resolve, exportTo)
	index.others = others
	for _, r := range oldestFirst(resources) {
		if len(r.Spec.(*networking.VirtualService).GetHosts()) == 0 {
			continue // a delegate
		}
		v := former.of(r)
		if v == nil || !sameNames || v.delegates() {
			read := newVirtualService(r, others, resolve, exportTo)
			if v == nil || !v.same(read) {
				v = read
			}
		}
		index.all = append(index.all, v)
		for _, g := range v.Gateways {
			index.byGateway[g] = append(index.byGateway[g], v)
		}
	}
	return index
}

// formerRules finds the readings of before for documents that come in their order.
type formerRules struct {
	all  []*VirtualService
	next int
}

// of gives the reading of before; nil where the document is another one, or new.
func (f *formerRules) of(r *config.Resource) *VirtualService {
	for f.next < len(f.all) {
		v := f.all[f.next]
		if v.Resource == r {
			f.next++
			return v
		}
		if older(r, v.Resource) {
			break
		}
		f.next++ // it is gone, or is r as it was
	}
	return nil
}

// delegates says whether the rule is in part what others say.
func (v *VirtualService) delegates() bool {
	return slices.ContainsFunc(v.Resource.Spec.(*networking.VirtualService).GetHttp(), func(r *networking.HTTPRoute) bool { return r.GetDelegate() != nil })
}

// same says whether two readings of one document are alike. In what delegates say names of hosts are full, and what a short one
// means depends on which services there are.
func (v *VirtualService) same(o *VirtualService) bool {
	return slices.Equal(v.Hosts, o.Hosts) && equalPointers(v.from, o.from) && (len(v.from) == 0 || proto.Equal(v.Spec, o.Spec))
}

// VirtualServicesForGateway are the VirtualServices for a gateway ("namespace/name") that a proxy of the namespace may
// see, the oldest first.
func (s *Snapshot) VirtualServicesForGateway(gateway, namespace string) []*VirtualService {
	var out []*VirtualService
	for _, v := range s.world.virtualServices.byGateway[gateway] {
		if v.VisibleTo(namespace) {
			out = append(out, v)
		}
	}
	return out
}
