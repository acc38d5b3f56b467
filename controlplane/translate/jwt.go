package translate

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/emptypb"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Timeout and refresh interval for key sets (JWKS) that proxies fetch themselves.
const (
	keysTimeout = 5 * time.Second
	keysRefresh = 20 * time.Minute
)

const (
	jwtFilterName = "envoy.filters.http.jwt_authn"
	// tokenPayload is the metadata key under which the filter stores the claims of a verified token, where policies
	// read them.
	tokenPayload = "payload"
)

// placeholderKeys is a key set with one public key. No party knows its private key. It replaces an issuer's keys until
// they are available, so that Envoy rejects the issuer's tokens instead of ignoring them. The x coordinate of the point
// is the SHA-256 of `nobody has the other half of this key` plus one.
const placeholderKeys = `{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"unknown",` +
	`"x":"x2st3ZHV9iWD2UkMfCuIrkFzwQxUTw5gRoY56-DLpSM","y":"dVtnkeID7e_Nlp46n_MeN8N0wpAlzO2LapmMxScDXIE"}]}`

// jwtRule is one rule of a RequestAuthentication, with the name of its provider in Envoy.
type jwtRule struct {
	*security.JWTRule
	name string
}

// jwtRules returns the rules of all RequestAuthentications for the workload.
func (v proxyView) jwtRules() []jwtRule {
	var out []jwtRule
	for _, r := range v.s.TokenRules(v.p.Namespace, v.p.Labels) {
		for _, rule := range r.Spec.GetJwtRules() {
			out = append(out, jwtRule{rule, fmt.Sprintf("origins-%d", len(out))})
		}
	}
	return out
}

// jwtFilters returns the filters that verify the tokens of requests and reject invalid ones. They accept a request
// without a token, because AuthorizationPolicies determine whether a token is required.
func (v proxyView) jwtFilters() []*hcmv3.HttpFilter {
	rules := v.jwtRules()
	if len(rules) == 0 {
		return nil
	}
	out := &jwtv3.JwtAuthentication{Providers: map[string]*jwtv3.JwtProvider{}, BypassCorsPreflight: true}
	kept := rules[:0:0]
	for _, rule := range rules {
		// Omit a provider that Envoy would reject. Envoy then rejects the tokens of its issuer, as it does for unknown
		// issuers.
		if p := v.jwtProvider(rule); p.Validate() == nil {
			out.Providers[rule.name] = p
			kept = append(kept, rule)
		}
	}
	out.Rules = []*jwtv3.RequirementRule{{
		Match:           matchAllPaths(),
		RequirementType: &jwtv3.RequirementRule_Requires{Requires: jwtRequirement(kept)},
	}}
	return []*hcmv3.HttpFilter{httpFilter(jwtFilterName, out)}
}

func (v proxyView) jwtProvider(rule jwtRule) *jwtv3.JwtProvider {
	p := &jwtv3.JwtProvider{
		Issuer:               rule.GetIssuer(),
		Audiences:            rule.GetAudiences(),
		Forward:              rule.GetForwardOriginalToken(),
		FromParams:           rule.GetFromParams(),
		FromCookies:          rule.GetFromCookies(),
		ForwardPayloadHeader: rule.GetOutputPayloadToHeader(),
		PayloadInMetadata:    tokenPayload,
		ClearRouteCache:      v.p.Type == Router, // routes of a gateway may match claims
		NormalizePayloadInMetadata: &jwtv3.JwtProvider_NormalizePayload{
			SpaceDelimitedClaims: spaceDelimited(rule.GetSpaceDelimitedClaims()),
		},
	}
	for _, h := range rule.GetFromHeaders() {
		p.FromHeaders = append(p.FromHeaders, &jwtv3.JwtHeader{Name: h.GetName(), ValuePrefix: h.GetPrefix()})
	}
	for _, o := range rule.GetOutputClaimToHeaders() {
		p.ClaimToHeaders = append(p.ClaimToHeaders, &jwtv3.JwtClaimToHeader{HeaderName: o.GetHeader(), ClaimName: o.GetClaim()})
	}
	v.jwtKeys(p, rule)
	return p
}

// spaceDelimited returns the names of the claims whose value is a space-separated list: "permission", "scope" (RFC
// 8693) and the additional names.
func spaceDelimited(additional []string) []string {
	out := []string{"permission", "scope"}
	for _, claim := range additional {
		if !slices.Contains(out, claim) {
			out = append(out, claim)
		}
	}
	return out
}

// jwtKeys sets the keys of a provider: the keys in the rule, the keys that the control plane fetched, or the URL from
// which the proxy fetches them.
func (v proxyView) jwtKeys(p *jwtv3.JwtProvider, rule jwtRule) {
	if remote := v.remoteKeys(rule.JWTRule); remote != nil {
		p.JwksSourceSpecifier = &jwtv3.JwtProvider_RemoteJwks{RemoteJwks: remote}
		return
	}
	p.JwksSourceSpecifier = &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: cmp.Or(v.localKeys(rule.JWTRule), placeholderKeys)},
	}}
}

func (v proxyView) localKeys(rule *security.JWTRule) string {
	if address := config.KeySetURL(rule); address != "" {
		keys, _ := v.s.Keys(address)
		return keys
	}
	keys, err := config.PublicKeys([]byte(rule.GetJwks()))
	if err != nil {
		return ""
	}
	return string(keys)
}

// remoteKeys returns a configuration with which the proxy fetches the keys itself. It returns nil if that is not
// enabled, or if the host of the keys is not a visible service. The service's DestinationRule determines whether the
// connection uses TLS, even if the URL is HTTPS.
func (v proxyView) remoteKeys(rule *security.JWTRule) *jwtv3.RemoteJwks {
	if !v.s.KeysByProxy || rule.GetJwksUri() == "" {
		return nil
	}
	at, err := url.Parse(rule.GetJwksUri())
	if err != nil {
		return nil
	}
	port := uint64(map[string]int{"http": 80, "https": 443}[at.Scheme])
	if at.Port() != "" {
		if port, err = strconv.ParseUint(at.Port(), 10, 16); err != nil {
			return nil
		}
	}
	svc := v.scope.Resolve(at.Hostname(), v.p.Namespace)
	if svc == nil {
		return nil
	}
	if known, ok := svc.Port(uint32(port)); !ok || known.Protocol == registry.UDP {
		return nil
	}
	timeout := rule.GetTimeout()
	if timeout == nil {
		timeout = duration(keysTimeout)
	}
	return &jwtv3.RemoteJwks{
		HttpUri: &corev3.HttpUri{
			Uri:              rule.GetJwksUri(),
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: OutboundCluster(svc.Hostname, "", uint32(port))},
			Timeout:          timeout,
		},
		CacheDuration: duration(keysRefresh),
		// Without FastListener, the listener would wait for the keys, even if the issuer does not respond.
		AsyncFetch: &jwtv3.JwksAsyncFetch{FastListener: true},
	}
}

// jwtRequirement returns the requirement that each token is valid. A location contains one token, which any of the
// rules for the location may accept. If such a rule also reads a second location, Envoy does not verify a token in the
// second location.
func jwtRequirement(rules []jwtRule) *jwtv3.JwtRequirement {
	missing := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}}
	var all []*jwtv3.JwtRequirement
	for _, group := range groupByToken(rules) {
		all = append(all, requireAnyToken(group, missing))
	}
	switch len(all) {
	case 0:
		return missing
	case 1:
		return all[0]
	}
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAll{
		RequiresAll: &jwtv3.JwtRequirementAndList{Requirements: all},
	}}
}

// groupByToken groups the rules that may apply to the same token. If a rule finds a token of another issuer, Envoy
// rejects the token. A token therefore has to fulfil only one of the rules that read it.
func groupByToken(rules []jwtRule) [][]jwtRule {
	var groups [][]jwtRule
	for _, rule := range rules {
		own, separate := []jwtRule{rule}, groups[:0:0]
		for _, g := range groups {
			if slices.ContainsFunc(g, rule.sharesToken) {
				own = append(slices.Clip(g), own...)
			} else {
				separate = append(separate, g)
			}
		}
		groups = append(separate, own)
	}
	return groups
}

// sharesToken reports whether both rules may apply to one token, or have the same issuer.
func (r jwtRule) sharesToken(other jwtRule) bool {
	return r.GetIssuer() == other.GetIssuer() || slices.ContainsFunc(r.tokenLocations(), func(place string) bool {
		return slices.Contains(other.tokenLocations(), place)
	})
}

// tokenLocations returns the locations where a rule looks for tokens.
func (r jwtRule) tokenLocations() []string {
	var out []string
	for _, h := range r.GetFromHeaders() {
		out = append(out, "header "+strings.ToLower(h.GetName()))
	}
	for _, name := range r.GetFromParams() {
		out = append(out, "parameter "+name)
	}
	for _, name := range r.GetFromCookies() {
		out = append(out, "cookie "+name)
	}
	if out == nil { // Envoy's defaults
		out = []string{"header authorization", "parameter access_token"}
	}
	return out
}

func requireAnyToken(rules []jwtRule, last *jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	var list []*jwtv3.JwtRequirement
	for _, rule := range rules {
		list = append(list, &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: rule.name}})
	}
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{
		RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: append(list, last)},
	}}
}

// claimPath returns the names in brackets of a key such as "request.auth.claims[realm_access][roles]". It returns nil
// for other keys.
func claimPath(key string) []string {
	rest, ok := strings.CutPrefix(key, "request.auth.claims")
	if !ok {
		return nil
	}
	var path []string
	for rest != "" {
		inner, ok := strings.CutPrefix(rest, "[")
		name, after, closed := strings.Cut(inner, "]")
		if !ok || !closed || name == "" {
			return nil
		}
		path, rest = append(path, name), after
	}
	return path
}
