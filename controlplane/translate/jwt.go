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

// How proxies fetch keys, where they do.
const (
	keysTimeout = 5 * time.Second
	keysRefresh = 20 * time.Minute
)

const (
	jwtFilterName = "envoy.filters.http.jwt_authn"
	// tokenPayload is where that filter leaves the claims of a token that it verified, for policies to look at.
	tokenPayload = "payload"
)

// unknownKeys is a set of one key that nobody has the other half of: what stands for the keys of an issuer until they are
// known, so that its tokens are refused rather than taken for no tokens. The point's x is one more than the SHA-256 of
// "nobody has the other half of this key".
const unknownKeys = `{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"unknown",` +
	`"x":"x2st3ZHV9iWD2UkMfCuIrkFzwQxUTw5gRoY56-DLpSM","y":"dVtnkeID7e_Nlp46n_MeN8N0wpAlzO2LapmMxScDXIE"}]}`

// jwtRule is one rule of a RequestAuthentication, and the name that its provider has in a proxy.
type jwtRule struct {
	*security.JWTRule
	name string
}

// jwtRules are those of all RequestAuthentications of the workload.
func (v view) jwtRules() []jwtRule {
	var out []jwtRule
	for _, r := range v.s.TokenRules(v.p.Namespace, v.p.Labels) {
		for _, rule := range r.Spec.GetJwtRules() {
			out = append(out, jwtRule{rule, fmt.Sprintf("origins-%d", len(out))})
		}
	}
	return out
}

// jwtFilters verify the tokens of requests, and refuse a request with one that is no good. A request without any passes:
// whether that may be is for AuthorizationPolicies to say.
func (v view) jwtFilters() []*hcmv3.HttpFilter {
	rules := v.jwtRules()
	if len(rules) == 0 {
		return nil
	}
	out := &jwtv3.JwtAuthentication{Providers: map[string]*jwtv3.JwtProvider{}, BypassCorsPreflight: true}
	kept := rules[:0:0]
	for _, rule := range rules {
		// A provider that Envoy would refuse is left out, and tokens of its issuer are refused as those of a stranger.
		if p := v.jwtProvider(rule); p.Validate() == nil {
			out.Providers[rule.name] = p
			kept = append(kept, rule)
		}
	}
	out.Rules = []*jwtv3.RequirementRule{{
		Match:           everyPath(),
		RequirementType: &jwtv3.RequirementRule_Requires{Requires: jwtRequirement(kept)},
	}}
	return []*hcmv3.HttpFilter{httpFilter(jwtFilterName, out)}
}

func (v view) jwtProvider(rule jwtRule) *jwtv3.JwtProvider {
	p := &jwtv3.JwtProvider{
		Issuer:               rule.GetIssuer(),
		Audiences:            rule.GetAudiences(),
		Forward:              rule.GetForwardOriginalToken(),
		FromParams:           rule.GetFromParams(),
		FromCookies:          rule.GetFromCookies(),
		ForwardPayloadHeader: rule.GetOutputPayloadToHeader(),
		PayloadInMetadata:    tokenPayload,
		ClearRouteCache:      v.p.Type == Router, // whose routes may ask for claims
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

// spaceDelimited are the claims in which one text is a list of words: by RFC 8693 that of the scopes, and what others call
// their like.
func spaceDelimited(more []string) []string {
	out := []string{"permission", "scope"}
	for _, claim := range more {
		if !slices.Contains(out, claim) {
			out = append(out, claim)
		}
	}
	return out
}

// jwtKeys gives a provider its keys: those of the rule, or those that were fetched, or where the proxy fetches them.
func (v view) jwtKeys(p *jwtv3.JwtProvider, rule jwtRule) {
	if remote := v.remoteKeys(rule.JWTRule); remote != nil {
		p.JwksSourceSpecifier = &jwtv3.JwtProvider_RemoteJwks{RemoteJwks: remote}
		return
	}
	p.JwksSourceSpecifier = &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: cmp.Or(v.keys(rule.JWTRule), unknownKeys)},
	}}
}

func (v view) keys(rule *security.JWTRule) string {
	if address := config.KeysAddress(rule); address != "" {
		keys, _ := v.s.Keys(address)
		return keys
	}
	keys, err := config.PublicKeys([]byte(rule.GetJwks()))
	if err != nil {
		return ""
	}
	return string(keys)
}

// remoteKeys lets the proxy fetch the keys, where that is wanted and they are at a service that it sees; nil otherwise.
// How it speaks to that service is the service's DestinationRule's affair, also for an address of HTTPS.
func (v view) remoteKeys(rule *security.JWTRule) *jwtv3.RemoteJwks {
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
		// Without waiting: a listener must not hang on an issuer that is away.
		AsyncFetch: &jwtv3.JwksAsyncFetch{FastListener: true},
	}
}

// jwtRequirement is that every token that is there is good. At one place there is one token, which any of the rules may
// take that look there; where these look at other places too, a second token there is not looked at.
func jwtRequirement(rules []jwtRule) *jwtv3.JwtRequirement {
	missing := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}}
	var all []*jwtv3.JwtRequirement
	for _, group := range together(rules) {
		all = append(all, anyToken(group, missing))
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

// together puts rules that may be about the same token into groups. Envoy refuses a token whose issuer is not that of the
// rule that finds it, so that rules which find the same one must not all be required.
func together(rules []jwtRule) [][]jwtRule {
	var groups [][]jwtRule
	for _, rule := range rules {
		own, apart := []jwtRule{rule}, groups[:0:0]
		for _, g := range groups {
			if slices.ContainsFunc(g, rule.meets) {
				own = append(slices.Clip(g), own...)
			} else {
				apart = append(apart, g)
			}
		}
		groups = append(apart, own)
	}
	return groups
}

// meets says whether both may be about one token, or are of one issuer, a token of which is good by either.
func (r jwtRule) meets(other jwtRule) bool {
	return r.GetIssuer() == other.GetIssuer() || slices.ContainsFunc(r.tokenPlaces(), func(place string) bool {
		return slices.Contains(other.tokenPlaces(), place)
	})
}

// tokenPlaces are where a rule looks for its tokens.
func (r jwtRule) tokenPlaces() []string {
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
	if out == nil { // Envoy's own
		out = []string{"header authorization", "parameter access_token"}
	}
	return out
}

func anyToken(rules []jwtRule, last *jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	var list []*jwtv3.JwtRequirement
	for _, rule := range rules {
		list = append(list, &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: rule.name}})
	}
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{
		RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: append(list, last)},
	}}
}

// claimPath reads what stands between the brackets of "request.auth.claims[realm_access][roles]".
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
