package snapshot

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// delegates are the VirtualServices that others may hand a part of their requests to: those without hosts.
type delegates struct {
	byKey    map[config.Key]*config.Resource
	resolve  resolver
	exportTo []string // of those that do not say
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

// find gives the delegate that a rule names; nil when there is none, or it is not for the rule's namespace.
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

// expand puts the delegates' routes in the place of those that name them, and says whose they are.
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
		for _, own := range found.Spec.(*networking.VirtualService).GetHttp() {
			if joined := d.join(r, own, found.Namespace); joined != nil {
				out.Http = append(out.Http, joined)
			}
		}
	}
	return out, from
}

// join is a delegate's route under the conditions of the route that names the delegate, with what that one says and the
// delegate's does not; nil where no request can meet the conditions of both.
func (d *delegates) join(root, own *networking.HTTPRoute, namespace string) *networking.HTTPRoute {
	if own.GetDelegate() != nil {
		return nil // one step is all there is
	}
	out := proto.Clone(own).(*networking.HTTPRoute)
	d.qualify(out, namespace)
	var possible bool
	if out.Match, possible = joinMatches(root.GetMatch(), own.GetMatch()); !possible {
		return nil
	}
	rest := proto.Clone(root).(*networking.HTTPRoute)
	rest.Delegate, rest.Match, rest.Name = nil, nil, ""
	inherit(out, rest)
	if root.GetName() != "" {
		out.Name = strings.Trim(root.GetName()+"-"+own.GetName(), "-")
	}
	return out
}

// inherit fills in the fields that the delegate's route does not have.
func inherit(out, rest *networking.HTTPRoute) {
	to, from := out.ProtoReflect(), rest.ProtoReflect()
	fields := to.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); !to.Has(f) && from.Has(f) {
			to.Set(f, from.Get(f))
		}
	}
}

// qualify gives destinations their full names: short ones are meant in the delegate's own namespace.
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

// joinMatches are all pairs of conditions that a request can meet at once. No conditions are no restriction.
func joinMatches(roots, own []*networking.HTTPMatchRequest) (joined []*networking.HTTPMatchRequest, possible bool) {
	switch {
	case len(roots) == 0:
		return own, true
	case len(own) == 0:
		return roots, true
	}
	for _, a := range roots {
		for _, b := range own {
			if m := joinMatch(a, b); m != nil {
				joined = append(joined, m)
			}
		}
	}
	return joined, len(joined) > 0
}

// joinMatch is nil where the two exclude each other, or where one condition could not say both.
func joinMatch(root, own *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	if !within(root, own) || !bothHold(root.GetScheme(), own.GetScheme()) || !bothHold(root.GetMethod(), own.GetMethod()) ||
		!bothHold(root.GetAuthority(), own.GetAuthority()) || root.GetPort() != 0 && own.GetPort() != 0 && root.GetPort() != own.GetPort() ||
		root.GetSourceNamespace() != "" && own.GetSourceNamespace() != "" && root.GetSourceNamespace() != own.GetSourceNamespace() {
		return nil
	}
	for _, pair := range [][2]map[string]*networking.StringMatch{
		{root.GetHeaders(), own.GetHeaders()}, {root.GetWithoutHeaders(), own.GetWithoutHeaders()}, {root.GetQueryParams(), own.GetQueryParams()},
	} {
		for name, m := range pair[0] {
			if other, both := pair[1][name]; both && !proto.Equal(m, other) {
				return nil
			}
		}
	}
	for name, value := range root.GetSourceLabels() {
		if other, both := own.GetSourceLabels()[name]; both && other != value {
			return nil
		}
	}
	out := proto.Clone(root).(*networking.HTTPMatchRequest)
	proto.Merge(out, proto.Clone(own)) // of a field that both have they say the same, but for the delegate's narrower path
	out.Gateways = slices.Clone(root.GetGateways())
	if root.GetName() != "" && own.GetName() != "" {
		out.Name = root.GetName() + "-" + own.GetName()
	}
	maps.Copy(out.GetHeaders(), own.GetHeaders())
	return out
}

func bothHold(a, b *networking.StringMatch) bool { return a == nil || b == nil || proto.Equal(a, b) }

// within says whether the delegate's path is one of those that the root hands on.
func within(root, own *networking.HTTPMatchRequest) bool {
	if root.GetUri() == nil || own.GetUri() == nil || proto.Equal(root.GetUri(), own.GetUri()) {
		return true
	}
	prefix, ok := root.GetUri().GetMatchType().(*networking.StringMatch_Prefix)
	if !ok {
		return false
	}
	switch uri := own.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Prefix:
		return strings.HasPrefix(uri.Prefix, prefix.Prefix)
	case *networking.StringMatch_Exact:
		return strings.HasPrefix(uri.Exact, prefix.Prefix)
	}
	return false
}
