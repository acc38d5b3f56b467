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

// MaxKeySet bounds a set of keys, inline or fetched: it goes to every proxy that is concerned. Sets that are in use have
// a few kilobytes.
const MaxKeySet = 128 << 10

// maxJWTRules bounds the rules of one document: each costs every request something.
const maxJWTRules = 64

func validateRequestAuthentication(s scope, p *security.RequestAuthentication) {
	s.field("selector").selector(p.GetSelector())
	s.targets(p.GetSelector(), p.GetTargetRef(), p.GetTargetRefs())
	if len(p.GetJwtRules()) > maxJWTRules {
		s.field("jwtRules").refuse(len(p.GetJwtRules()), fmt.Sprintf("there are more than %d rules", maxJWTRules), "split the document by workload")
	}
	for i, rule := range p.GetJwtRules() {
		s.item("jwtRules", i).jwtRule(rule)
	}
}

// targets checks what a policy is for.
func (s scope) targets(selector *typev1beta1.WorkloadSelector, ref *typev1beta1.PolicyTargetReference, refs []*typev1beta1.PolicyTargetReference) {
	if ref == nil && len(refs) == 0 {
		return
	}
	if selector != nil {
		s.field("selector").refuse("", "excludes targetRefs", "keep either")
	}
	if ref != nil {
		s.field("targetRef").target(ref)
	}
	for i, r := range refs {
		s.item("targetRefs", i).target(r)
	}
}

func (s scope) target(ref *typev1beta1.PolicyTargetReference) {
	if ref.GetKind() == "" {
		s.field("kind").refuse("", "no kind", "say what the policy is for, as in kind: Gateway")
	}
	if ref.GetName() == "" {
		s.field("name").refuse("", "no name", "name what the policy is for")
	}
	if ref.GetNamespace() != "" {
		s.field("namespace").refuse(ref.GetNamespace(), "policies are for what is in their own namespace", "remove it, and put the policy into that namespace")
	}
}

// JWTRuleField is the place of a rule in its document.
func JWTRuleField(i int) string { return fmt.Sprintf("spec.jwtRules[%d]", i) }

// KeysAddress is where the keys of a rule are to be fetched: its jwksUri, or the discovery document of its issuer
// (OpenID Connect Discovery 1.0). Empty when they are in the rule.
func KeysAddress(rule *security.JWTRule) string {
	switch {
	case rule.GetJwks() != "":
		return ""
	case rule.GetJwksUri() != "":
		return rule.GetJwksUri()
	}
	return strings.TrimSuffix(rule.GetIssuer(), "/") + DiscoveryPath
}

// DiscoveryPath is what follows an issuer in the address of its discovery document.
const DiscoveryPath = "/.well-known/openid-configuration"

func (s scope) jwtRule(rule *security.JWTRule) {
	if rule.GetIssuer() == "" {
		s.field("issuer").refuse("", "no issuer", "give what the tokens have as \"iss\"")
	}
	s.keys(rule)
	for i, audience := range rule.GetAudiences() {
		if audience == "" {
			s.item("audiences", i).refuse("", "an empty audience", "remove it, or the list to take tokens for any audience")
		}
	}
	s.tokenPlaces(rule)
	s.tokenOutputs(rule)
	if rule.GetTimeout() != nil {
		s.field("timeout").millisecond(rule.GetTimeout())
	}
	for i, claim := range rule.GetSpaceDelimitedClaims() {
		if claim == "" {
			s.item("spaceDelimitedClaims", i).refuse("", "an empty name", "remove it")
		}
	}
}

// keys checks where a rule has its keys from.
func (s scope) keys(rule *security.JWTRule) {
	switch {
	case rule.GetJwks() != "" && rule.GetJwksUri() != "":
		s.field("jwks").refuse("", "excludes jwksUri", "keep either")
	case rule.GetJwks() != "":
		if len(rule.GetJwks()) > MaxKeySet {
			s.field("jwks").refuse("", fmt.Sprintf("the keys have %d bytes; at most %d are taken", len(rule.GetJwks()), MaxKeySet), "give fewer keys")
		} else if _, err := PublicKeys([]byte(rule.GetJwks())); err != nil {
			// The value is not shown: it may have keys that are nobody's business.
			s.field("jwks").refuse("", "no set of public keys: "+err.Error(), "give a JWK set (RFC 7517): {\"keys\": [{\"kty\": \"RSA\", …}]}")
		}
	case rule.GetJwksUri() != "":
		s.field("jwksUri").httpAddress(rule.GetJwksUri())
	case !isHTTPAddress(rule.GetIssuer()):
		s.field("jwksUri").refuse("", "there are no keys, and the issuer is no address below which they could be found", "set jwks or jwksUri")
	}
}

func isHTTPAddress(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil && u.Fragment == ""
}

func (s scope) httpAddress(text string) {
	if !isHTTPAddress(text) || len(text) > 2048 {
		s.refuse(text, "not an address of HTTP or HTTPS", "as in https://issuer.example/keys")
	}
}

// tokenPlaces checks where a request may have its token.
func (s scope) tokenPlaces(rule *security.JWTRule) {
	for i, h := range rule.GetFromHeaders() {
		at := s.item("fromHeaders", i)
		if h.GetName() == "" {
			at.field("name").refuse("", "no header", "name one, as in x-jwt-assertion")
		} else {
			at.field("name").headerName(h.GetName())
		}
		if strings.ContainsAny(h.GetPrefix(), "\r\n\x00") {
			at.field("prefix").refuse(h.GetPrefix(), "not the beginning of a header's value", "as in \"Bearer \"")
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

// tokenOutputs checks which headers a token becomes.
func (s scope) tokenOutputs(rule *security.JWTRule) {
	if header := rule.GetOutputPayloadToHeader(); header != "" {
		s.field("outputPayloadToHeader").outputHeader(header)
	}
	for i, o := range rule.GetOutputClaimToHeaders() {
		at := s.item("outputClaimToHeaders", i)
		at.field("header").outputHeader(o.GetHeader())
		if o.GetClaim() == "" {
			at.field("claim").refuse("", "no claim", "name one, as in sub or address.city")
		}
	}
}

// outputHeader checks a header that a proxy sets: one of those that decide where a request goes, or who it is from, is not
// for a token to say.
func (s scope) outputHeader(name string) {
	lower := strings.ToLower(name)
	switch {
	case name == "":
		s.refuse("", "no header", "name one, as in x-jwt-claim-sub")
	case strings.HasPrefix(name, ":") || lower == "host" || lower == "x-forwarded-client-cert" || lower == "x-forwarded-for":
		s.refuse(name, "a token cannot set this header", "use another, as in x-jwt-claim-sub")
	default:
		s.headerName(name)
	}
}

// PublicKeys reads a JWK set and gives it with nothing in it but what proxies need: the public keys that they can use, in
// the set's order. Secret parts are left out; keys that are nothing but secret are refused.
func PublicKeys(set []byte) ([]byte, error) {
	keys, err := readKeySet(set)
	if err != nil {
		return nil, err
	}
	return marshalKeySet(keys)
}

var errNoKeys = errors.New("there is no key in it that can be used: RSA, EC (P-256, P-384, P-521) or OKP (Ed25519)")

func usable(key jose.JSONWebKey) (jose.JSONWebKey, bool) {
	if key.Use != "" && key.Use != "sig" {
		return key, false
	}
	public := key.Public()
	if !public.Valid() {
		return key, false
	}
	return public, true
}
