package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-jose/go-jose/v4"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
)

// MaxKeySet limits the size of a key set (JWKS), inline or fetched, in bytes. Each proxy that verifies the tokens
// receives the key set. Common key sets have a few kilobytes.
const MaxKeySet = 128 << 10

// maxJWTRules limits the rules of one document, because Envoy evaluates all of them for every request.
const maxJWTRules = 64

func validateRequestAuthentication(s validator, p *security.RequestAuthentication) {
	s.field("selector").checkSelector(p.GetSelector())
	s.checkTargets(p.GetSelector(), p.GetTargetRef(), p.GetTargetRefs())
	if len(p.GetJwtRules()) > maxJWTRules {
		s.field("jwtRules").refuse(len(p.GetJwtRules()), fmt.Sprintf("there are more than %d rules", maxJWTRules), "split the document by workload")
	}
	for i, rule := range p.GetJwtRules() {
		s.item("jwtRules", i).checkJWTRule(rule)
	}
}

// checkTargets checks the target references of a policy, and that selector is nil if there are any.
func (s validator) checkTargets(selector *typev1beta1.WorkloadSelector, ref *typev1beta1.PolicyTargetReference, refs []*typev1beta1.PolicyTargetReference) {
	if ref == nil && len(refs) == 0 {
		return
	}
	if selector != nil {
		s.field("selector").refuse("", "cannot be combined with targetRef or targetRefs", "remove one of them")
	}
	if ref != nil {
		s.field("targetRef").checkTarget(ref)
	}
	for i, r := range refs {
		s.item("targetRefs", i).checkTarget(r)
	}
}

func (s validator) checkTarget(ref *typev1beta1.PolicyTargetReference) {
	if ref.GetKind() == "" {
		s.field("kind").refuse("", "the kind is missing", "set the kind of the target, as in kind: Gateway")
	}
	if ref.GetName() == "" {
		s.field("name").refuse("", "the name is missing", "set the kind and name of the target")
	}
	if ref.GetNamespace() != "" {
		s.field("namespace").refuse(ref.GetNamespace(), "the target of a policy must be in the namespace of the policy", "remove the field, and move the policy to the target's namespace")
	}
}

// JWTRuleField returns the field path of the i-th JWT rule in its document.
func JWTRuleField(i int) string { return fmt.Sprintf("spec.jwtRules[%d]", i) }

// KeySetURL returns the URL from which the keys of rule are fetched. This is the rule's jwksUri, or the discovery
// document of the issuer (OpenID Connect Discovery 1.0). It returns "" if the rule contains the keys.
func KeySetURL(rule *security.JWTRule) string {
	switch {
	case rule.GetJwks() != "":
		return ""
	case rule.GetJwksUri() != "":
		return rule.GetJwksUri()
	}
	return strings.TrimSuffix(rule.GetIssuer(), "/") + DiscoveryPath
}

// DiscoveryPath is the path of the discovery document, relative to the issuer's URL.
const DiscoveryPath = "/.well-known/openid-configuration"

func (s validator) checkJWTRule(rule *security.JWTRule) {
	if rule.GetIssuer() == "" {
		s.field("issuer").warn("", "without an issuer, tokens of all issuers that use these keys are accepted", "set the value of the tokens' claim \"iss\"")
	}
	s.checkKeys(rule)
	for i, audience := range rule.GetAudiences() {
		if audience == "" {
			s.item("audiences", i).refuse("", "the audience is empty", "remove it, or remove the list to accept tokens for any audience")
		}
	}
	s.checkTokenSources(rule)
	s.checkTokenOutputs(rule)
	if rule.GetTimeout() != nil {
		s.field("timeout").checkMilliseconds(rule.GetTimeout())
	}
	for i, claim := range rule.GetSpaceDelimitedClaims() {
		if claim == "" {
			s.item("spaceDelimitedClaims", i).refuse("", "an empty name", "remove it")
		}
	}
}

// checkKeys checks that rule has exactly one valid source of keys: jwks, jwksUri, or the issuer's discovery document.
func (s validator) checkKeys(rule *security.JWTRule) {
	switch {
	case rule.GetJwks() != "" && rule.GetJwksUri() != "":
		s.field("jwks").refuse("", "cannot be combined with jwksUri", "remove one of them")
	case rule.GetJwks() != "":
		if len(rule.GetJwks()) > MaxKeySet {
			s.field("jwks").refuse("", fmt.Sprintf("the keys have %d bytes; at most %d are allowed", len(rule.GetJwks()), MaxKeySet), "set fewer keys")
		} else if _, err := PublicKeys([]byte(rule.GetJwks())); err != nil {
			// The value is not reported, because it may contain private keys.
			s.field("jwks").refuse("", "not a set of public keys: "+err.Error(), "set a JWK set (RFC 7517): {\"keys\": [{\"kty\": \"RSA\", …}]}")
		}
	case rule.GetJwksUri() != "":
		s.field("jwksUri").checkHTTPAddress(rule.GetJwksUri())
	case !isHTTPAddress(rule.GetIssuer()):
		s.field("jwksUri").refuse("", "the rule contains no keys, and the issuer is not a URL from which they can be discovered", "set jwks or jwksUri")
	}
}

func isHTTPAddress(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil && u.Fragment == ""
}

func (s validator) checkHTTPAddress(text string) {
	if !isHTTPAddress(text) || len(text) > 2048 {
		s.refuse(text, "not a URL of HTTP or HTTPS", "use a value such as https://issuer.example/keys")
	}
}

// checkTokenSources checks the headers, query parameters and cookies from which the token is read.
func (s validator) checkTokenSources(rule *security.JWTRule) {
	for i, h := range rule.GetFromHeaders() {
		at := s.item("fromHeaders", i)
		if h.GetName() == "" {
			at.field("name").refuse("", "the name of the header is missing", "set the name of a header, as in x-jwt-assertion")
		} else {
			at.field("name").checkHeaderName(h.GetName())
		}
		if strings.ContainsAny(h.GetPrefix(), "\r\n\x00") {
			at.field("prefix").refuse(h.GetPrefix(), "not the beginning of a header's value", "use a value such as \"Bearer \"")
		}
	}
	for name, list := range map[string][]string{"fromParams": rule.GetFromParams(), "fromCookies": rule.GetFromCookies()} {
		for i, item := range list {
			if item == "" {
				s.item(name, i).refuse("", "an empty name", "remove it")
			}
		}
	}
}

// checkTokenOutputs checks the headers that are set from a token.
func (s validator) checkTokenOutputs(rule *security.JWTRule) {
	if header := rule.GetOutputPayloadToHeader(); header != "" {
		s.field("outputPayloadToHeader").checkOutputHeader(header)
	}
	for i, o := range rule.GetOutputClaimToHeaders() {
		at := s.item("outputClaimToHeaders", i)
		at.field("header").checkOutputHeader(o.GetHeader())
		if o.GetClaim() == "" {
			at.field("claim").refuse("", "the name of the claim is missing", "set the name of a claim, as in sub or address.city")
		}
	}
}

// checkOutputHeader checks the name of a header that a proxy sets from a token. It refuses headers that decide the
// route or identify the client.
func (s validator) checkOutputHeader(name string) {
	lower := strings.ToLower(name)
	switch {
	case name == "":
		s.refuse("", "the name of the header is missing", "set the name of a header, as in x-jwt-claim-sub")
	case strings.HasPrefix(name, ":") || lower == "host" || lower == "x-forwarded-client-cert" || lower == "x-forwarded-for":
		s.refuse(name, "a token cannot set this header", "use another header, as in x-jwt-claim-sub")
	default:
		s.checkHeaderName(name)
	}
}

// PublicKeys returns the JWK set with only those public keys that proxies can use, in the original order. It removes
// the private parts of keys. It fails if no usable key remains, for example in a set of symmetric keys.
func PublicKeys(set []byte) ([]byte, error) {
	keys, err := readKeySet(set)
	if err != nil {
		return nil, err
	}
	return marshalKeySet(keys)
}

var errNoKeys = errors.New("the set contains no usable key: RSA, EC (P-256, P-384, P-521) or OKP (Ed25519)")

func isUsableKey(key jose.JSONWebKey) (jose.JSONWebKey, bool) {
	if key.Use != "" && key.Use != "sig" {
		return key, false
	}
	public := key.Public()
	if !public.Valid() {
		return key, false
	}
	return public, true
}
