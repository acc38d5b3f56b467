package ca

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// TokenIssuer is an external issuer of tokens that prove the service account of a workload. The tokens are JWTs with a
// subject of the form system:serviceaccount:NAMESPACE:SERVICE-ACCOUNT. Kubernetes issues such tokens, and OpenID
// Connect providers can issue them.
type TokenIssuer struct {
	// Issuer is the "iss" claim of the tokens.
	Issuer string
	// Audiences lists the accepted audiences. A token must have one of them. Default: TokenAudience.
	Audiences []string
	// Keys returns the issuer's current public keys, as a JWK set.
	Keys func() (string, error)
}

// issuerAlgorithms lists the accepted signature algorithms of external issuers.
var issuerAlgorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.PS384, jose.PS512, jose.EdDSA,
}

// ErrUnavailable is wrapped by errors of a TokenVerifier that concern the verifier and not the token. The client may try
// the same token again.
var ErrUnavailable = errors.New("tokens cannot be verified at the moment")

// VerifiedToken is what a token proves.
type VerifiedToken struct {
	Namespace, ServiceAccount string
	// Proof describes the token for the audit log, without secrets.
	Proof string
}

// TokenVerifier verifies tokens that prove the service account of a workload. Its methods are safe for concurrent use.
type TokenVerifier interface {
	// VerifyToken verifies a token of at most 8 KiB. The error contains the reason for the client.
	VerifyToken(ctx context.Context, token string) (VerifiedToken, error)
}

// IdentifyToken returns the identity that a token of the authority, or of Options.Tokens, proves.
func (a *Authority) IdentifyToken(ctx context.Context, token string) (Identity, error) {
	if len(token) > maxToken {
		return Identity{}, tokenSizeError(len(token))
	}
	if a.opts.Tokens != nil && unverifiedIssuer(token) != a.tokenIssuer() {
		id, _, err := a.verifyOther(ctx, token)
		return id, err
	}
	return a.VerifyToken(token)
}

// identifyToken returns the identity that a token proves. The issuer that the token names selects the verification.
// proof describes the token for the audit log.
func (a *Authority) identifyToken(ctx context.Context, token string) (id Identity, proof string, err error) {
	if len(token) > maxToken {
		return Identity{}, "", tokenSizeError(len(token))
	}
	name := unverifiedIssuer(token)
	for i := range a.opts.Issuers {
		if issuer := &a.opts.Issuers[i]; issuer.Issuer == name && name != a.tokenIssuer() {
			id, err = a.verifyExternal(issuer, token)
			return id, "token of " + issuer.Issuer, err
		}
	}
	if a.opts.Tokens != nil && name != a.tokenIssuer() {
		return a.verifyOther(ctx, token)
	}
	id, err = a.VerifyToken(token)
	return id, "token", err
}

// verifyOther verifies a token with Options.Tokens.
func (a *Authority) verifyOther(ctx context.Context, token string) (id Identity, proof string, err error) {
	verified, err := a.opts.Tokens.VerifyToken(ctx, token)
	if err != nil {
		return Identity{}, "", err
	}
	id = Identity{TrustDomain: a.trustDomain, Namespace: verified.Namespace, ServiceAccount: verified.ServiceAccount}
	if err := id.Validate(); err != nil {
		return Identity{}, "", fmt.Errorf("the token's subject: %w", err)
	}
	return id, verified.Proof, a.denied.Load().checkAccount(id)
}

// unverifiedIssuer returns the issuer that token names. It returns "" if token names none or cannot be parsed. It does
// not verify token.
func unverifiedIssuer(token string) string {
	parsed, err := jwt.ParseSigned(token, issuerAlgorithms)
	if err != nil {
		return ""
	}
	var claims jwt.Claims
	if parsed.UnsafeClaimsWithoutVerification(&claims) != nil {
		return ""
	}
	return claims.Issuer
}

// verifyExternal verifies a token of an external issuer and returns its identity.
func (a *Authority) verifyExternal(issuer *TokenIssuer, token string) (Identity, error) {
	text, err := issuer.Keys()
	if err != nil {
		return Identity{}, fmt.Errorf("tokens of issuer %s cannot be verified: %w", issuer.Issuer, err)
	}
	var keys jose.JSONWebKeySet
	if err := unmarshalKeys(text, &keys); err != nil {
		return Identity{}, fmt.Errorf("tokens of issuer %s cannot be verified: %w", issuer.Issuer, err)
	}
	parsed, err := jwt.ParseSigned(token, issuerAlgorithms)
	if err != nil {
		return Identity{}, fmt.Errorf("the token is not a signed JWT: %w", err)
	}
	claims, err := verifiedClaims(parsed, keys)
	if err != nil {
		return Identity{}, fmt.Errorf("verifying the token of issuer %s: %w", issuer.Issuer, err)
	}
	audiences := issuer.Audiences
	if len(audiences) == 0 {
		audiences = []string{TokenAudience}
	}
	now := a.now()
	if claims.Expiry == nil {
		return Identity{}, errors.New("the token has no expiry (claim exp)")
	}
	if end := claims.Expiry.Time(); !now.Before(end) {
		return Identity{}, fmt.Errorf("the token expired at %s", end.UTC().Format(time.RFC3339))
	}
	expected := jwt.Expected{Issuer: issuer.Issuer, AnyAudience: audiences, Time: now}
	if err := claims.ValidateWithLeeway(expected, tokenSkew); err != nil {
		return Identity{}, fmt.Errorf("the token (issuer %.100q, audience %.100q) is not accepted: %w", claims.Issuer, claims.Audience, err)
	}
	return a.subjectOf(claims)
}

// verifiedClaims verifies the signature of token and returns its claims. It uses the keys in set that have the key ID
// in token. If token contains no key ID, it tries each key.
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
	return jwt.Claims{}, errors.New("the token is not signed with a key of the issuer")
}
