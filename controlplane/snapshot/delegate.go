package snapshot

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// delegates contains the VirtualServices without hosts, to which other VirtualServices delegate routes.
type delegates struct {
	byKey    map[config.Key]*config.Resource
	resolve  resolver
	exportTo []string // the default of exportTo
}

func newDelegates(resources []*config.Resource, resolve resolver, exportTo []string) *delegates {
	d := &delegates{byKey: map[config.Key]*config.Resource{}, resolve: resolve, exportTo: exportTo}
	for _, r := range resources {
		if spec := r.Spec.(*networking.VirtualService); len(spec.GetHosts()) == 0 {
			d.byKey[r.Key] = r
		}
	}
	return d
}

// find returns the delegate to which a rule refers. It returns nil if the delegate does not exist or is not exported to
// the rule's namespace. If named has no namespace, the delegate is in the rule's namespace.
func (d *delegates) find(rule *config.Resource, named *networking.Delegate) *config.Resource {
	key := config.Key{Kind: config.VirtualService, Namespace: named.GetNamespace(), Name: named.GetName()}
	if key.Namespace == "" {
		key.Namespace = rule.Namespace
	}
	found := d.byKey[key]
	if found == nil {
		return nil
	}
	exportTo := found.Spec.(*networking.VirtualService).GetExportTo()
	if len(exportTo) == 0 {
		exportTo = d.exportTo
	}
	if !exportedTo(exportTo, found.Namespace, rule.Namespace) {
		return nil
	}
	return found
}

// expand returns the spec of a VirtualService in which the routes of delegates replace the delegating routes. It also
// returns the delegates. Without delegating routes, it returns the unchanged spec and nil.
func (d *delegates) expand(rule *config.Resource) (*networking.VirtualService, []*config.Resource) {
	spec := rule.Spec.(*networking.VirtualService)
	if !slices.ContainsFunc(spec.GetHttp(), func(r *networking.HTTPRoute) bool { return r.GetDelegate() != nil }) {
		return spec, nil
	}
	out := &networking.VirtualService{
		Hosts: spec.GetHosts(), Gateways: spec.GetGateways(), Tls: spec.GetTls(), Tcp: spec.GetTcp(), ExportTo: spec.GetExportTo(),
	}
	var from []*config.Resource
	for _, r := range spec.GetHttp() {
		if r.GetDelegate() == nil {
			out.Http = append(out.Http, r)
			continue
		}
		found := d.find(rule, r.GetDelegate())
		if found == nil {
			continue
		}
		from = append(from, found)
		for _, delegated := range found.Spec.(*networking.VirtualService).GetHttp() {
			if joined := d.mergeRoute(r, delegated, found.Namespace); joined != nil {
				out.Http = append(out.Http, joined)
			}
		}
	}
	return out, from
}

// mergeRoute returns a route of a delegate, restricted to the matches of the root route. Settings that the delegated
// route does not specify are inherited from the root route. mergeRoute returns nil if no request matches both routes,
// or if the delegated route itself delegates.
func (d *delegates) mergeRoute(root, delegated *networking.HTTPRoute, namespace string) *networking.HTTPRoute {
	if delegated.GetDelegate() != nil {
		return nil // nested delegation is not supported
	}
	out := proto.Clone(delegated).(*networking.HTTPRoute)
	d.qualify(out, namespace)
	var possible bool
	if out.Match, possible = MergeMatches(root.GetMatch(), delegated.GetMatch()); !possible {
		return nil
	}
	rest := proto.Clone(root).(*networking.HTTPRoute)
	rest.Delegate, rest.Match, rest.Name = nil, nil, ""
	inherit(out, rest)
	if root.GetName() != "" {
		out.Name = strings.Trim(root.GetName()+"-"+delegated.GetName(), "-")
	}
	return out
}

// inherit copies those fields of rest to out that are not set in out.
func inherit(out, rest *networking.HTTPRoute) {
	to, from := out.ProtoReflect(), rest.ProtoReflect()
	fields := to.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); !to.Has(f) && from.Has(f) {
			to.Set(f, from.Get(f))
		}
	}
}

// qualify replaces short host names in destinations by full names. Short names are relative to the delegate's
// namespace.
func (d *delegates) qualify(r *networking.HTTPRoute, namespace string) {
	full := func(to *networking.Destination) {
		if to != nil {
			to.Host = d.resolve(to.GetHost(), namespace)
		}
	}
	for _, to := range r.GetRoute() {
		full(to.GetDestination())
	}
	full(r.GetMirror())
	for _, m := range r.GetMirrors() {
		full(m.GetDestination())
	}
}

// MergeMatches returns all combinations of a root match and a delegated match that one request can fulfil. An empty
// list matches everything.
func MergeMatches(roots, delegated []*networking.HTTPMatchRequest) (joined []*networking.HTTPMatchRequest, possible bool) {
	switch {
	case len(roots) == 0:
		return delegated, true
	case len(delegated) == 0:
		return roots, true
	}
	for _, a := range roots {
		for _, b := range delegated {
			if m := mergeMatch(a, b); m != nil {
				joined = append(joined, m)
			}
		}
	}
	return joined, len(joined) > 0
}

// mergeMatch returns the match that requires both matches. It returns nil if the matches exclude each other, or if one
// match cannot express both.
func mergeMatch(root, delegated *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	if !isURIWithin(root, delegated) || !canBothHold(root.GetScheme(), delegated.GetScheme()) || !canBothHold(root.GetMethod(), delegated.GetMethod()) ||
		!canBothHold(root.GetAuthority(), delegated.GetAuthority()) || root.GetPort() != 0 && delegated.GetPort() != 0 && root.GetPort() != delegated.GetPort() ||
		root.GetSourceNamespace() != "" && delegated.GetSourceNamespace() != "" && root.GetSourceNamespace() != delegated.GetSourceNamespace() {
		return nil
	}
	for _, pair := range [][2]map[string]*networking.StringMatch{
		{root.GetHeaders(), delegated.GetHeaders()}, {root.GetWithoutHeaders(), delegated.GetWithoutHeaders()}, {root.GetQueryParams(), delegated.GetQueryParams()},
	} {
		for name, m := range pair[0] {
			if other, both := pair[1][name]; both && !proto.Equal(m, other) {
				return nil
			}
		}
	}
	for name, value := range root.GetSourceLabels() {
		if other, both := delegated.GetSourceLabels()[name]; both && other != value {
			return nil
		}
	}
	out := proto.Clone(root).(*networking.HTTPMatchRequest)
	// Fields that both matches set are equal, except for the delegate's narrower path.
	proto.Merge(out, proto.Clone(delegated))
	out.Gateways = slices.Clone(root.GetGateways())
	if root.GetName() != "" && delegated.GetName() != "" {
		out.Name = root.GetName() + "-" + delegated.GetName()
	}
	maps.Copy(out.GetHeaders(), delegated.GetHeaders())
	return out
}

func canBothHold(a, b *networking.StringMatch) bool { return a == nil || b == nil || proto.Equal(a, b) }

// isURIWithin reports whether all paths that the delegate's match accepts are within the root's match.
func isURIWithin(root, delegated *networking.HTTPMatchRequest) bool {
	if root.GetUri() == nil || delegated.GetUri() == nil || proto.Equal(root.GetUri(), delegated.GetUri()) {
		return true
	}
	prefix, ok := root.GetUri().GetMatchType().(*networking.StringMatch_Prefix)
	if !ok {
		return false
	}
	switch uri := delegated.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Prefix:
		return strings.HasPrefix(uri.Prefix, prefix.Prefix)
	case *networking.StringMatch_Exact:
		return strings.HasPrefix(uri.Exact, prefix.Prefix)
	}
	return false
}
