package ca

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// TokenIssuer is somebody else whose tokens prove which service account a workload runs as: JWTs with a subject of the form
// system:serviceaccount:NAMESPACE:SERVICE-ACCOUNT, as Kubernetes and OpenID Connect providers make them.
type TokenIssuer struct {
	// Issuer is what the tokens have as "iss".
	Issuer string
	// Audiences are those of which a token needs one; default: TokenAudience.
	Audiences []string
	// Keys gives the issuer's public keys at present, as a JWK set.
	Keys func() (string, error)
}

// issuerAlgorithms are those that prove something: with a public key, and with no hash that was broken.
var issuerAlgorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.PS384, jose.PS512, jose.EdDSA,
}

// issuerOf finds who a token says it is from; nil when that is none of the others.
func (a *Authority) issuerOf(token string) *TokenIssuer {
	if len(a.opts.Issuers) == 0 || len(token) > largestToken {
		return nil
	}
	parsed, err := jwt.ParseSigned(token, issuerAlgorithms)
	if err != nil {
		return nil
	}
	var claims jwt.Claims
	if parsed.UnsafeClaimsWithoutVerification(&claims) != nil {
		return nil
	}
	for i := range a.opts.Issuers {
		if issuer := &a.opts.Issuers[i]; issuer.Issuer == claims.Issuer && claims.Issuer != a.tokenIssuer() {
			return issuer
		}
	}
	return nil
}

// verifyForeign finds out whom a token of another issuer proves.
func (a *Authority) verifyForeign(issuer *TokenIssuer, token string) (Identity, error) {
	text, err := issuer.Keys()
	if err != nil {
		return Identity{}, fmt.Errorf("tokens of %s cannot be verified: %w", issuer.Issuer, err)
	}
	var keys jose.JSONWebKeySet
	if err := unmarshalKeys(text, &keys); err != nil {
		return Identity{}, fmt.Errorf("tokens of %s cannot be verified: %w", issuer.Issuer, err)
	}
	parsed, err := jwt.ParseSigned(token, issuerAlgorithms)
	if err != nil {
		return Identity{}, fmt.Errorf("the token is no signed JWT: %w", err)
	}
	claims, err := verifiedClaims(parsed, keys)
	if err != nil {
		return Identity{}, fmt.Errorf("the token says that it is from %s: %w", issuer.Issuer, err)
	}
	audiences := issuer.Audiences
	if len(audiences) == 0 {
		audiences = []string{TokenAudience}
	}
	now := a.now()
	if claims.Expiry == nil {
		return Identity{}, errors.New("the token does not say when it expires")
	}
	if end := claims.Expiry.Time(); !now.Before(end) {
		return Identity{}, fmt.Errorf("the token expired at %s", end.UTC().Format(time.RFC3339))
	}
	expected := jwt.Expected{Issuer: issuer.Issuer, AnyAudience: audiences, Time: now}
	if err := claims.ValidateWithLeeway(expected, tokenSkew); err != nil {
		return Identity{}, fmt.Errorf("the token (issuer %.100q, audience %.100q) is refused: %w", claims.Issuer, claims.Audience, err)
	}
	return a.subjectOf(claims)
}

// verifiedClaims tries the keys of the token's name, or all when it names none.
func verifiedClaims(token *jwt.JSONWebToken, set jose.JSONWebKeySet) (jwt.Claims, error) {
	keys := set.Keys
	if id := token.Headers[0].KeyID; id != "" {
		keys = set.Key(id)
	}
	for _, key := range keys {
		var claims jwt.Claims
		if key.IsPublic() && token.Claims(key.Key, &claims) == nil {
			return claims, nil
		}
	}
	return jwt.Claims{}, errors.New("none of that issuer's keys has signed it")
}
