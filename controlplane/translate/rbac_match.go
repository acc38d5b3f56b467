package translate

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	templatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// pattern is a value in a policy: "value", "prefix*", "*suffix", or "*" for any non-empty value.
type pattern struct {
	text                      string
	isPrefix, isSuffix, isAny bool
}

func parsePattern(v string) pattern {
	switch {
	case v == "*":
		return pattern{isAny: true}
	case strings.HasPrefix(v, "*"):
		return pattern{text: v[1:], isSuffix: true}
	case strings.HasSuffix(v, "*"):
		return pattern{text: v[:len(v)-1], isPrefix: true}
	}
	return pattern{text: v}
}

func (p pattern) matcher() *matcherv3.StringMatcher {
	switch {
	case p.isAny:
		return regex(".+")
	case p.isPrefix:
		return prefix(p.text)
	case p.isSuffix:
		return suffix(p.text)
	}
	return exact(p.text)
}

// expression returns the pattern as a regular expression. In the result, any replaces the wildcard.
func (p pattern) expression(any string) string {
	switch {
	case p.isAny:
		return any
	case p.isPrefix:
		return regexp.QuoteMeta(p.text) + any
	case p.isSuffix:
		return any + regexp.QuoteMeta(p.text)
	}
	return regexp.QuoteMeta(p.text)
}

func authenticated(m *matcherv3.StringMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
		Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m},
	}}
}

func noPrincipal() *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: andIDs(nil)}}
}

// principal matches identities without their scheme, such as "cluster.local/ns/default/sa/reviews". If a pattern
// contains the mesh's trust domain, it also matches identities in the aliases of that trust domain. As in Istio,
// "cluster.local" represents the mesh's trust domain.
func (c ruleCompiler) principal(v string) *rbacv3.Principal {
	domain, rest, ok := strings.Cut(v, "/")
	own := append([]string{c.trustDomain}, c.aliases...)
	if !ok || domain != "cluster.local" && !slices.Contains(own, domain) {
		return c.identity(v)
	}
	variants := make([]string, 0, len(own))
	for _, d := range own {
		variants = append(variants, d+"/"+rest)
	}
	return orIDs(variants, c.identity)
}

func (c ruleCompiler) identity(v string) *rbacv3.Principal {
	p := parsePattern(v)
	switch {
	case p.isAny:
		return authenticated(regex("spiffe://.+"))
	case p.isSuffix:
		return authenticated(regex("spiffe://.*" + regexp.QuoteMeta(p.text)))
	}
	p.text = "spiffe://" + p.text
	return authenticated(p.matcher())
}

// namespacePrincipal matches the namespace in the client's identity. As in Istio, a prefix pattern also matches the
// prefix itself: "prod*" matches prod.
func namespacePrincipal(v string) *rbacv3.Principal {
	return authenticated(regex("spiffe://[^/]+/ns/" + parsePattern(v).expression("[^/]*") + "/.*"))
}

// serviceAccountPrincipal matches "namespace/account", or "account" in the policy's namespace.
func (c ruleCompiler) serviceAccountPrincipal(v string) *rbacv3.Principal {
	namespace, account, ok := strings.Cut(v, "/")
	if !ok {
		namespace, account = c.namespace, v
	}
	return authenticated(regex("spiffe://[^/]+/ns/" + regexp.QuoteMeta(namespace) + "/sa/" + regexp.QuoteMeta(account)))
}

func trustDomainPrincipal(v string) *rbacv3.Principal {
	return authenticated(regex("spiffe://" + parsePattern(v).expression("[^/]*") + "/.*"))
}

// cidr parses an IP address or a CIDR block. It returns nil if v is neither.
func cidr(v string) *corev3.CidrRange {
	p, err := netip.ParsePrefix(v)
	if err != nil {
		addr, err := netip.ParseAddr(v)
		if err != nil {
			return nil
		}
		p = netip.PrefixFrom(addr, addr.BitLen())
	}
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: u32(uint32(p.Bits()))}
}

func connectionPrincipal(v string) *rbacv3.Principal {
	if block := cidr(v); block != nil {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: block}}
	}
	return noPrincipal()
}

func remotePrincipal(v string) *rbacv3.Principal {
	if block := cidr(v); block != nil {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: block}}
	}
	return noPrincipal()
}

func headerPrincipal(name, v string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: headerMatcher(name, v)}}
}

// headerMatcher returns a matcher for a header. It uses the lower-case name, because header names are case-sensitive in
// gRPC libraries, unlike in Envoy.
func headerMatcher(name, v string) *routev3.HeaderMatcher {
	h := &routev3.HeaderMatcher{Name: strings.ToLower(name)}
	if p := parsePattern(v); p.isAny {
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
	} else {
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: p.matcher()}
	}
	return h
}

func noPermission() *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: andRules(nil)}}
}

func portPermission(v string) *rbacv3.Permission {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return noPermission()
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: uint32(n)}}
}

func destinationPermission(v string) *rbacv3.Permission {
	if block := cidr(v); block != nil {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: block}}
	}
	return noPermission()
}

func sniPermission(v string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: parsePattern(v).matcher()}}
}

func methodPermission(v string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: headerMatcher(":method", v)}}
}

// hostPermission matches the Host header case-insensitively. A host without a port matches every port: "reviews"
// matches the header REVIEWS:9080.
func hostPermission(v string) *rbacv3.Permission {
	p := parsePattern(v)
	if p.isAny {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: headerMatcher(":authority", "*")}}
	}
	expression := "(?i)" + p.expression(".*")
	if !p.isPrefix && !strings.Contains(p.text, ":") {
		expression += "(:[0-9]+)?"
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: &routev3.HeaderMatcher{
		Name: ":authority", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: regex(expression)},
	}}}
}

func isTemplate(path string) bool {
	return strings.Contains(path, "{*}") || strings.Contains(path, "{**}")
}

// isValidPath reports whether Envoy accepts v as a path or a path template. An invalid template would crash Envoy.
func isValidPath(v string) bool {
	if !isTemplate(v) {
		return true
	}
	_, err := config.EnvoyPathTemplate(v)
	return err == nil
}

// isValidRequestPrincipal reports whether the number of slashes in a request principal is within the limit. Each slash
// may separate issuer and subject, so requestPrincipal creates one matcher per slash.
func isValidRequestPrincipal(v string) bool {
	return strings.Count(v, "/") <= config.MaxRequestPrincipalSlashes
}

// isValidHost reports whether Envoy accepts the regular expression for a host. Envoy limits the size of the expression.
func isValidHost(v string) bool { return len(v) <= config.MaxPolicyHost }

// pathPermission matches the path without its query: a pattern, or a template with {*} for one segment and {**} for any
// number of segments.
func pathPermission(v string) *rbacv3.Permission {
	if isTemplate(v) {
		template, err := config.EnvoyPathTemplate(v)
		if err != nil {
			return noPermission()
		}
		return &rbacv3.Permission{Rule: &rbacv3.Permission_UriTemplate{UriTemplate: &corev3.TypedExtensionConfig{
			Name:        "envoy.path.match.uri_template.uri_template_matcher",
			TypedConfig: anyOf(&templatev3.UriTemplateMatchConfig{PathTemplate: template}),
		}}}
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{
		Rule: &matcherv3.PathMatcher_Path{Path: parsePattern(v).matcher()},
	}}}
}
