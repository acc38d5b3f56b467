package translate

import (
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// metadataPrincipal matches dynamic metadata that the filter has set.
func metadataPrincipal(filter string, path []string, value *matcherv3.ValueMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{
		MetadataMatcher: metadataMatcher(filter, path, value),
	}}}
}

func metadataMatcher(filter string, path []string, value *matcherv3.ValueMatcher) *matcherv3.MetadataMatcher {
	m := &matcherv3.MetadataMatcher{Filter: filter, Value: value}
	for _, key := range path {
		m.Path = append(m.Path, &matcherv3.MetadataMatcher_PathSegment{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key},
		})
	}
	return m
}

func stringValue(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
}

func listValue(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
		MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: stringValue(m)},
	}}}
}

// stringOrList returns a matcher for a string, or for one element of a list of strings. A claim may have either form.
func stringOrList(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{
		ValueMatchers: []*matcherv3.ValueMatcher{stringValue(m), listValue(m)},
	}}}
}

// claimPrincipal returns a function that builds a matcher for a value of the claim at path in the request's token.
func claimPrincipal(path []string) func(string) *rbacv3.Principal {
	return func(v string) *rbacv3.Principal {
		return metadataPrincipal(jwtFilterName, append([]string{tokenPayload}, path...), stringOrList(parsePattern(v).matcher()))
	}
}

// requestPrincipal matches "issuer/subject" of the request's token. Both issuer and subject may contain slashes, so any
// slash of the value may be the separator.
func requestPrincipal(v string) *rbacv3.Principal {
	issuer := func(m *matcherv3.StringMatcher) *rbacv3.Principal {
		return metadataPrincipal(jwtFilterName, []string{tokenPayload, "iss"}, stringValue(m))
	}
	subject := func(m *matcherv3.StringMatcher) *rbacv3.Principal {
		return metadataPrincipal(jwtFilterName, []string{tokenPayload, "sub"}, stringValue(m))
	}
	something := func() *matcherv3.StringMatcher { return regex(".+") }
	p := parsePattern(v)
	if p.isAny {
		return andIDs([]*rbacv3.Principal{issuer(something()), subject(something())})
	}
	var ways []*rbacv3.Principal
	both := func(i, s *matcherv3.StringMatcher) {
		ways = append(ways, andIDs([]*rbacv3.Principal{issuer(i), subject(s)}))
	}
	for i := range p.text {
		if p.text[i] != '/' {
			continue
		}
		before, after := p.text[:i], p.text[i+1:]
		switch {
		case p.isPrefix:
			both(exact(before), prefixOrAny(after))
		case p.isSuffix:
			both(suffixOrAny(before), exact(after))
		default:
			both(exact(before), exact(after))
		}
	}
	switch {
	case p.isPrefix:
		both(prefix(p.text), something())
	case p.isSuffix:
		both(something(), suffix(p.text))
	}
	if len(ways) == 0 {
		return noPrincipal()
	}
	return orPrincipals(ways)
}

// prefixOrAny returns a matcher for values that begin with s. If s is empty, which Envoy rejects as a prefix, it
// returns a matcher for any value.
func prefixOrAny(s string) *matcherv3.StringMatcher {
	if s == "" {
		return regex(".+")
	}
	return prefix(s)
}

func suffixOrAny(s string) *matcherv3.StringMatcher {
	if s == "" {
		return regex(".+")
	}
	return suffix(s)
}

func orPrincipals(ids []*rbacv3.Principal) *rbacv3.Principal {
	if len(ids) == 1 {
		return ids[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: ids}}}
}

const filterMetadataKey = "experimental.envoy.filters."

// metadataPermission matches metadata that another filter sets, for example
// "experimental.envoy.filters.network.mysql_proxy[db.table]". If the value is in brackets, it matches one element of a
// list.
func metadataPermission(key string) func(string) *rbacv3.Permission {
	filter, name, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(key, "experimental."), "]"), "[")
	return func(v string) *rbacv3.Permission {
		value := stringValue(parsePattern(v).matcher())
		if strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]") {
			value = listValue(parsePattern(v[1 : len(v)-1]).matcher())
		}
		return &rbacv3.Permission{Rule: &rbacv3.Permission_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{
			MetadataMatcher: metadataMatcher(filter, []string{name}, value),
		}}}
	}
}
