package translate

import (
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// routeMatch returns those conditions of m that Envoy must evaluate for each request.
func routeMatch(m *networking.HTTPMatchRequest) *routev3.RouteMatch {
	out := matchAllPaths()
	if m == nil {
		return out
	}
	matchPath(out, m)
	for _, pseudo := range []struct {
		name  string
		match *networking.StringMatch
	}{{":method", m.GetMethod()}, {":authority", m.GetAuthority()}, {":scheme", m.GetScheme()}} {
		if pseudo.match != nil {
			out.Headers = append(out.Headers, headerMatch(pseudo.name, pseudo.match))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetHeaders())) {
		if claim, ok := claimMatch(name, m.GetHeaders()[name]); ok {
			out.DynamicMetadata = append(out.DynamicMetadata, claim)
			continue
		}
		out.Headers = append(out.Headers, headerMatch(name, m.GetHeaders()[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetWithoutHeaders())) {
		if claim, ok := claimMatch(name, m.GetWithoutHeaders()[name]); ok {
			claim.Invert = true
			out.DynamicMetadata = append(out.DynamicMetadata, claim)
			continue
		}
		h := headerMatch(name, m.GetWithoutHeaders()[name])
		h.InvertMatch = true
		// A condition in withoutHeaders is met if the header is missing. Without this field, Envoy would not match such
		// a request.
		h.TreatMissingHeaderAsEmpty = h.GetStringMatch() != nil
		out.Headers = append(out.Headers, h)
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetQueryParams())) {
		out.QueryParameters = append(out.QueryParameters, queryMatch(name, m.GetQueryParams()[name]))
	}
	return out
}

// claimMatch returns a match on a claim of the request's token. It returns false if the header name does not refer to a
// claim.
func claimMatch(name string, m *networking.StringMatch) (*matcherv3.MetadataMatcher, bool) {
	path, ok := config.RoutingClaim(name)
	if !ok {
		return nil, false
	}
	value := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
	if s := stringMatch(m); s != nil {
		value = stringOrList(s)
	}
	return metadataMatcher(jwtFilterName, append([]string{tokenPayload}, path...), value), true
}

func matchPath(out *routev3.RouteMatch, m *networking.HTTPMatchRequest) {
	switch uri := m.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: uri.Exact}
	case *networking.StringMatch_Prefix:
		if uri.Prefix != "" {
			out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: uri.Prefix}
		}
	case *networking.StringMatch_Regex:
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regexMatcher(uri.Regex)}
		return // Envoy rejects case_sensitive in combination with a regular expression
	}
	if m.GetIgnoreUriCase() {
		out.CaseSensitive = boolean(false)
	}
}

// stringMatch returns a string matcher. It returns nil if m accepts every value: it has no match type, an empty prefix
// or regular expression, or the regular expression "*". Callers then only require the presence of a value.
func stringMatch(m *networking.StringMatch) *matcherv3.StringMatcher {
	switch v := m.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return exact(v.Exact)
	case *networking.StringMatch_Prefix:
		if v.Prefix != "" {
			return prefix(v.Prefix)
		}
	case *networking.StringMatch_Regex:
		if v.Regex != "" && v.Regex != "*" {
			return regex(v.Regex)
		}
	}
	return nil
}

func headerMatch(name string, m *networking.StringMatch) *routev3.HeaderMatcher {
	h := &routev3.HeaderMatcher{Name: name}
	if s := stringMatch(m); s != nil {
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: s}
	} else {
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
	}
	return h
}

func queryMatch(name string, m *networking.StringMatch) *routev3.QueryParameterMatcher {
	q := &routev3.QueryParameterMatcher{Name: name}
	if s := stringMatch(m); s != nil {
		q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: s}
	} else {
		q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
	}
	return q
}

// ruleMetadata identifies the document of a route in configuration dumps, in Istio's format.
func ruleMetadata(r *config.Resource) *corev3.Metadata {
	return filterMetadata("istio", map[string]string{
		"config": "/apis/networking.istio.io/v1/namespaces/" + r.Namespace + "/virtual-service/" + r.Name,
	})
}
