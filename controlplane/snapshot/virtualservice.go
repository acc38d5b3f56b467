package snapshot

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// MeshGateway is the gateway name in a VirtualService that stands for all sidecars.
const MeshGateway = "mesh"

// VirtualService is a document of kind VirtualService with resolved names. It is immutable.
type VirtualService struct {
	*config.Resource
	// Spec is the specification, in which delegating routes are replaced by the delegates' routes.
	Spec *networking.VirtualService
	// Hosts are the full names of the hosts, in document order.
	Hosts []string
	// Gateways are the gateways to which the VirtualService is bound: "mesh", or "namespace/name".
	Gateways []string
	// ExportTo contains the namespaces to which the rule is exported, or the mesh's default. If it is empty, the rule is
	// exported to all.
	ExportTo []string
	// from contains the delegates whose routes are in Spec.
	from []*config.Resource
}

// IsForGateway reports whether the VirtualService is bound to gateway. The name "mesh" stands for all sidecars.
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
	return exportedTo(v.ExportTo, v.Namespace, namespace)
}

// MatchesSourceNamespace reports whether any HTTP route has a condition on the client's namespace. v may be nil.
func (v *VirtualService) MatchesSourceNamespace() bool {
	if v == nil {
		return false
	}
	return slices.ContainsFunc(v.Spec.GetHttp(), func(r *networking.HTTPRoute) bool {
		return slices.ContainsFunc(r.GetMatch(), func(m *networking.HTTPMatchRequest) bool { return m.GetSourceNamespace() != "" })
	})
}

// RuleVisibleTo reports whether a VirtualService or DestinationRule, which may have been removed, is exported to the
// namespace.
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

// GatewayName returns the full name ("namespace/name") of a gateway. written is the name in a document of namespace.
// GatewayName returns "mesh" and full names unchanged.
func GatewayName(written, namespace string) string {
	if written == MeshGateway || strings.Contains(written, "/") {
		return written
	}
	return namespace + "/" + written
}

// resolver returns the full name of host, as written in a document of namespace.
type resolver func(host, namespace string) string

func newVirtualService(r *config.Resource, delegates *delegates, resolve resolver, defaultExportTo []string) *VirtualService {
	spec, from := delegates.expand(r)
	v := &VirtualService{Resource: r, Spec: spec, ExportTo: spec.GetExportTo(), from: from}
	if len(v.ExportTo) == 0 {
		v.ExportTo = defaultExportTo
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

// newVirtualServices indexes VirtualServices. prev may be nil. sameNames means that host names in documents resolve to
// the same services as for prev.
func newVirtualServices(prev *virtualServices, resources []*config.Resource, resolve resolver, exportTo []string, sameNames bool) *virtualServices {
	former := formerRuleFinder{}
	if prev != nil {
		former.all = prev.all
	}
	index := &virtualServices{byGateway: map[string][]*VirtualService{}}
	delegates := newDelegates(resources, resolve, exportTo)
	index.delegates = delegates
	for _, r := range config.SortByAge(resources) {
		if len(r.Spec.(*networking.VirtualService).GetHosts()) == 0 {
			continue // a VirtualService without hosts is a delegate
		}
		v := former.findFormer(r)
		if v == nil || !sameNames || v.HasDelegates() {
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

// formerRuleFinder finds the previous version of each VirtualService. The documents must be passed in order of their
// age.
type formerRuleFinder struct {
	all  []*VirtualService
	next int
}

// findFormer returns the previous VirtualService of the same, unchanged document. It returns nil if the document is new
// or has changed.
func (f *formerRuleFinder) findFormer(r *config.Resource) *VirtualService {
	for f.next < len(f.all) {
		v := f.all[f.next]
		if v.Resource == r {
			f.next++
			return v
		}
		if config.CompareAge(r, v.Resource) < 0 {
			break
		}
		f.next++ // the document was removed, or this is the old version of r
	}
	return nil
}

// HasDelegates reports whether the rule delegates routes.
func (v *VirtualService) HasDelegates() bool {
	return slices.ContainsFunc(v.Resource.Spec.(*networking.VirtualService).GetHttp(), func(r *networking.HTTPRoute) bool { return r.GetDelegate() != nil })
}

// equal reports whether two versions of the same document are equal. It compares the delegates' routes after their host
// names were resolved, because the resolution of short names depends on the existing services.
func (v *VirtualService) equal(o *VirtualService) bool {
	return slices.Equal(v.Hosts, o.Hosts) && slices.Equal(v.from, o.from) && (len(v.from) == 0 || proto.Equal(v.Spec, o.Spec))
}

// VirtualServices returns the VirtualServices with hosts, oldest first. The caller must not change the list.
func (s *Snapshot) VirtualServices() []*VirtualService { return s.index.virtualServices.all }

// Delegate returns the VirtualService to which a route of rule delegates. It returns nil if that VirtualService does
// not exist or is not exported to the namespace of rule.
func (s *Snapshot) Delegate(rule *config.Resource, named *networking.Delegate) *config.Resource {
	return s.index.virtualServices.delegates.find(rule, named)
}

// VirtualServicesForGateway returns the VirtualServices that are bound to gateway ("namespace/name") and exported to
// namespace, in order of precedence.
func (s *Snapshot) VirtualServicesForGateway(gateway, namespace string) []*VirtualService {
	return sortForNamespace(s.index.virtualServices.byGateway[gateway], namespace)
}
