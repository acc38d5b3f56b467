package ca

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// ExchangedTokenTTL is the lifetime of a token that IssueJWTSVID issues.
	ExchangedTokenTTL = time.Hour

	// maxAudiences limits the number of audiences that a client can request for a token, and maxAudience the length of
	// each in bytes.
	maxAudiences = 16
	maxAudience  = 2048
)

// IssueJWTSVID issues a token with which a workload proves its identity to other services. The token is a JWT-SVID with
// the SPIFFE ID of id as its subject, signed with ES256 by the key in TokenKeys. issuer is the URL at which verifiers
// of the token find the keys.
//
// This authority never accepts such a token: IssueJWTSVID refuses to issue tokens for the audience of the authority's
// own tokens, and VerifyToken accepts only the trust domain as issuer.
func (a *Authority) IssueJWTSVID(id Identity, issuer string, audiences []string) (token string, expires time.Time, err error) {
	if err := checkAudiences(audiences); err != nil {
		return "", time.Time{}, err
	}
	now := a.now()
	expires = now.Add(ExchangedTokenTTL)
	token, err = jwt.Signed(a.tokens).Claims(jwt.Claims{
		Issuer:    issuer,
		Subject:   id.SPIFFEID(),
		Audience:  audiences,
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now.Add(-backdate)),
		Expiry:    jwt.NewNumericDate(expires),
		ID:        rand.Text(),
	}).Serialize()
	if err != nil {
		return "", time.Time{}, fmt.Errorf("issuing a token for %s: %w", id, err)
	}
	return token, expires, nil
}

func checkAudiences(audiences []string) error {
	switch {
	case len(audiences) == 0:
		return errors.New("the request specifies no audience: set the audience of the token")
	case len(audiences) > maxAudiences:
		return fmt.Errorf("%d audiences are specified; at most %d are allowed", len(audiences), maxAudiences)
	case slices.Contains(audiences, TokenAudience):
		return fmt.Errorf("the audience %s is reserved for tokens that authenticate workloads to the control plane, which cannot be obtained by token exchange: request another audience", TokenAudience)
	}
	for _, audience := range audiences {
		if len(audience) > maxAudience || strings.TrimSpace(audience) == "" {
			return fmt.Errorf("an audience is empty or longer than %d bytes", maxAudience)
		}
	}
	return nil
}

// TokenKeys returns the public key that verifies the tokens of IssueJWTSVID, as a JWK set (RFC 7517).
func (a *Authority) TokenKeys() (jose.JSONWebKeySet, error) {
	id, err := keyID(a.tokenKey)
	if err != nil {
		return jose.JSONWebKeySet{}, err
	}
	key := jose.JSONWebKey{Key: a.tokenKey, KeyID: id, Algorithm: string(jose.ES256), Use: "sig"}
	return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key}}, nil
}
