package snapshot

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// MeshGateway is the gateway name for all sidecars in a VirtualService.
const MeshGateway = "mesh"

// VirtualService is a VirtualService with resolved names. Immutable.
type VirtualService struct {
	*config.Resource
	// Spec is the document with its delegates' routes.
	Spec *networking.VirtualService
	// Hosts are the full names of its hosts, in document order.
	Hosts []string
	// Gateways are the gateways to which it is bound: "mesh", or "namespace/name".
	Gateways []string
	exportTo []string
	// from are the delegates whose routes it contains.
	from []*config.Resource
}

// IsForGateway reports whether the rule is bound to a gateway ("mesh" for sidecars).
func (v *VirtualService) IsForGateway(gateway string) bool {
	for _, g := range v.Gateways {
		if g == gateway {
			return true
		}
	}
	return false
}

// VisibleTo reports whether the rule is exported to the namespace.
func (v *VirtualService) VisibleTo(namespace string) bool {
	return exportedTo(v.exportTo, v.Namespace, namespace)
}

// MatchesSourceNamespace reports whether any of its HTTP routes matches a source namespace.
func (v *VirtualService) MatchesSourceNamespace() bool {
	if v == nil {
		return false
	}
	return slices.ContainsFunc(v.Spec.GetHttp(), func(r *networking.HTTPRoute) bool {
		return slices.ContainsFunc(r.GetMatch(), func(m *networking.HTTPMatchRequest) bool { return m.GetSourceNamespace() != "" })
	})
}

// RuleVisibleTo reports whether a current or removed VirtualService or DestinationRule is exported to the namespace.
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

// GatewayName returns the full name ("namespace/name") of a gateway in a document of the namespace.
func GatewayName(written, namespace string) string {
	if written == MeshGateway || strings.Contains(written, "/") {
		return written
	}
	return namespace + "/" + written
}

// resolver returns the full name of a host in a document of the namespace.
type resolver func(host, namespace string) string

func newVirtualService(r *config.Resource, delegates *delegates, resolve resolver, defaultExportTo []string) *VirtualService {
	spec, from := delegates.expand(r)
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

// virtualServices contains all VirtualServices, oldest first.
type virtualServices struct {
	delegates *delegates
	all       []*VirtualService
	byGateway map[string][]*VirtualService
}

// newVirtualServices indexes VirtualServices. prev may be nil. sameNames reports whether names in documents resolve as
// they did for prev.
func newVirtualServices(prev *virtualServices, resources []*config.Resource, resolve resolver, exportTo []string, sameNames bool) *virtualServices {
	former := formerRuleFinder{}
	if prev != nil {
		former.all = prev.all
	}
	index := &virtualServices{byGateway: map[string][]*VirtualService{}}
	delegates := newDelegates(resources, resolve, exportTo)
	index.delegates = delegates
	for _, r := range sortByAge(resources) {
		if len(r.Spec.(*networking.VirtualService).GetHosts()) == 0 {
			continue // a delegate
		}
		v := former.findFormer(r)
		if v == nil || !sameNames || v.hasDelegates() {
			read := newVirtualService(r, delegates, resolve, exportTo)
			if v == nil || !v.equal(read) {
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

// formerRuleFinder finds previous VirtualServices for documents in sort order.
type formerRuleFinder struct {
	all  []*VirtualService
	next int
}

// findFormer returns the previous VirtualService of the same document, or nil if the document is new or changed.
func (f *formerRuleFinder) findFormer(r *config.Resource) *VirtualService {
	for f.next < len(f.all) {
		v := f.all[f.next]
		if v.Resource == r {
			f.next++
			return v
		}
		if isOlder(r, v.Resource) {
			break
		}
		f.next++ // it was removed, or is the old version of r
	}
	return nil
}

// hasDelegates reports whether the rule delegates routes.
func (v *VirtualService) hasDelegates() bool {
	return slices.ContainsFunc(v.Resource.Spec.(*networking.VirtualService).GetHttp(), func(r *networking.HTTPRoute) bool { return r.GetDelegate() != nil })
}

// equal reports whether two versions of the same document are equal. In delegates' routes host names are resolved, and
// the resolution of short names depends on the existing services.
func (v *VirtualService) equal(o *VirtualService) bool {
	return slices.Equal(v.Hosts, o.Hosts) && equalPointers(v.from, o.from) && (len(v.from) == 0 || proto.Equal(v.Spec, o.Spec))
}

// VirtualServicesForGateway returns the VirtualServices of a gateway ("namespace/name") that are exported to the
// namespace, oldest first.
func (s *Snapshot) VirtualServicesForGateway(gateway, namespace string) []*VirtualService {
	var out []*VirtualService
	for _, v := range s.index.virtualServices.byGateway[gateway] {
		if v.VisibleTo(namespace) {
			out = append(out, v)
		}
	}
	return out
}
