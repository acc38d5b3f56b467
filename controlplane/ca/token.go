package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// TokenAudience is the audience of the tokens that Istio agents send to their CA.
	TokenAudience = "istio-ca"
	// MaxTokenTTL is the maximum lifetime of a token. It limits the damage of a stolen token, because tokens cannot be
	// revoked.
	MaxTokenTTL = 366 * 24 * time.Hour

	subjectPrefix = "system:serviceaccount:"
	maxToken      = 8 << 10
	// tokenSkew is the accepted difference between the clocks of this machine and a token's issuer.
	tokenSkew = backdate
)

func newTokenSigner(key *ecdsa.PrivateKey) (jose.Signer, error) {
	id, err := keyID(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, fmt.Errorf("creating the signer of tokens: %w", err)
	}
	return signer, nil
}

// keyID returns the thumbprint of key (RFC 7638), which identifies the key in tokens.
func keyID(key *ecdsa.PublicKey) (string, error) {
	public := jose.JSONWebKey{Key: key}
	thumbprint, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("computing the ID of the key for tokens: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(thumbprint), nil
}

// IssueToken issues a token that proves a workload's service account to the control plane. It is a JWT signed with
// ES256. Its audience and subject have the form of the tokens that Kubernetes mounts for Istio.
func (a *Authority) IssueToken(namespace, serviceAccount string, ttl time.Duration) (string, error) {
	id := Identity{TrustDomain: a.trustDomain, Namespace: namespace, ServiceAccount: serviceAccount}
	if err := id.Validate(); err != nil {
		return "", fmt.Errorf("issuing a token: %w", err)
	}
	if ttl <= 0 || ttl > MaxTokenTTL {
		return "", fmt.Errorf("issuing a token for %s: the lifetime %s is not accepted; specify at most %s", id, ttl, MaxTokenTTL)
	}
	now := a.now()
	token, err := jwt.Signed(a.tokens).Claims(jwt.Claims{
		Issuer:    a.tokenIssuer(),
		Subject:   subjectPrefix + namespace + ":" + serviceAccount,
		Audience:  jwt.Audience{TokenAudience},
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		Expiry:    jwt.NewNumericDate(now.Add(ttl)),
		ID:        rand.Text(),
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("issuing a token for %s: %w", id, err)
	}
	return token, nil
}

// tokenIssuer returns the issuer claim of this authority's tokens. It contains the trust domain, so that a token is
// valid in no other trust domain.
func (a *Authority) tokenIssuer() string { return "spiffe://" + a.trustDomain }

// VerifyToken verifies a token that this authority issued by IssueToken, and returns the identity that it proves.
func (a *Authority) VerifyToken(token string) (Identity, error) {
	if len(token) > maxToken {
		return Identity{}, tokenSizeError(len(token))
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return Identity{}, fmt.Errorf("the token is not a JWT signed with ES256: %w", err)
	}
	var claims jwt.Claims
	if err := parsed.Claims(a.tokenKey, &claims); err != nil {
		return Identity{}, errors.New("the token was not signed by this authority: another control plane issued the token, or this authority was " +
			"created later: issue a new token")
	}
	if err := a.checkClaims(claims); err != nil {
		return Identity{}, err
	}
	return a.subjectOf(claims)
}

func tokenSizeError(size int) error {
	return fmt.Errorf("the token has %d bytes; at most %d are allowed", size, maxToken)
}

func (a *Authority) checkClaims(claims jwt.Claims) error {
	now := a.now()
	if claims.Expiry == nil {
		return errors.New("the token has no expiry (claim exp)")
	}
	if end := claims.Expiry.Time(); !now.Before(end) {
		return fmt.Errorf("the token expired at %s: issue a new one", end.UTC().Format(time.RFC3339))
	}
	expected := jwt.Expected{Issuer: a.tokenIssuer(), AnyAudience: jwt.Audience{TokenAudience}, Time: now}
	if err := claims.ValidateWithLeeway(expected, tokenSkew); err != nil {
		return fmt.Errorf("the token (issuer %.100q, audience %.100q) is not accepted: %w", claims.Issuer, claims.Audience, err)
	}
	return nil
}

func (a *Authority) subjectOf(claims jwt.Claims) (Identity, error) {
	names, ok := strings.CutPrefix(claims.Subject, subjectPrefix)
	namespace, account, both := strings.Cut(names, ":")
	if !ok || !both {
		return Identity{}, fmt.Errorf("the token's subject %.300q is not of the form %sNAMESPACE:SERVICE-ACCOUNT", claims.Subject, subjectPrefix)
	}
	id := Identity{TrustDomain: a.trustDomain, Namespace: namespace, ServiceAccount: account}
	if err := id.Validate(); err != nil {
		return Identity{}, fmt.Errorf("reading the token's subject: %w", err)
	}
	return id, a.denied.Load().checkAccount(id)
}
