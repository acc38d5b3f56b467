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
	// ExchangedTokenTTL is how long a token lives that IssueJWTSVID makes.
	ExchangedTokenTTL = time.Hour

	// mostAudiences and longestAudience bound what a caller may have written into a token.
	mostAudiences   = 16
	longestAudience = 2048
)

// IssueJWTSVID makes a token by which others know a workload: a JWT-SVID, with the SPIFFE ID as its subject, for the
// audiences given, signed with ES256 by a key of TokenKeys. issuer is the URL where those who are shown the token find
// the keys.
//
// It never proves anything to this authority: the audience of its own tokens is refused, and so is, in VerifyToken, every
// other issuer than the trust domain.
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
		return errors.New("no audience is given: name whom the token is for")
	case len(audiences) > mostAudiences:
		return fmt.Errorf("%d audiences are given; at most %d are allowed", len(audiences), mostAudiences)
	case slices.Contains(audiences, TokenAudience):
		return fmt.Errorf("the audience %s is this authority's own: its tokens are not got by exchange", TokenAudience)
	}
	for _, audience := range audiences {
		if len(audience) > longestAudience || strings.TrimSpace(audience) == "" {
			return fmt.Errorf("an audience is empty or longer than %d bytes", longestAudience)
		}
	}
	return nil
}

// TokenKeys are the keys by which others verify the tokens that IssueJWTSVID makes: a JWK set (RFC 7517).
func (a *Authority) TokenKeys() (jose.JSONWebKeySet, error) {
	id, err := keyID(a.tokenKey)
	if err != nil {
		return jose.JSONWebKeySet{}, err
	}
	key := jose.JSONWebKey{Key: a.tokenKey, KeyID: id, Algorithm: string(jose.ES256), Use: "sig"}
	return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key}}, nil
}
