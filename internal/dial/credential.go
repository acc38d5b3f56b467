package dial

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// The kinds of credentials.
const (
	KindToken             = "token"
	KindClientCertificate = "client certificate"
)

// Credential is one of the ways in which the agent proves itself to a server, as its file is at the moment.
type Credential struct {
	Kind, File string
	// NotAfter is when it ends to be valid; zero when it does not say so, as a token that is not a JWT.
	NotAfter time.Time
	// Err says why it cannot be used at all.
	Err error
}

// Problem says what is wrong with the credential at the time, and what to do; empty for nothing.
func (c Credential) Problem(now time.Time) string {
	switch {
	case c.Err != nil:
		return c.Err.Error()
	case !c.NotAfter.IsZero() && !now.Before(c.NotAfter):
		return fmt.Sprintf("the %s in %s expired at %s, %s ago: see that what renews it works",
			c.Kind, c.File, c.NotAfter.UTC().Format(time.RFC3339), now.Sub(c.NotAfter).Round(time.Second))
	}
	return ""
}

// Credentials reads what there is to show to the server: the token, the client certificate, or both. There are none in
// plaintext.
func (s Server) Credentials() []Credential {
	var found []Credential
	if s.Plaintext {
		return nil
	}
	if s.TokenFile != "" {
		c := Credential{Kind: KindToken, File: s.TokenFile}
		token, err := ReadToken(s.TokenFile)
		if c.Err = err; err == nil {
			c.NotAfter = tokenExpiry(token)
		}
		found = append(found, c)
	}
	if s.TLS.CertFile != "" {
		c := Credential{Kind: KindClientCertificate, File: s.TLS.CertFile}
		pair, err := s.TLS.clientCertificate()
		if err != nil {
			c.Err = fmt.Errorf("client certificate %s with key %s: %w", s.TLS.CertFile, s.TLS.KeyFile, err)
		} else if pair.Leaf != nil {
			c.NotAfter = pair.Leaf.NotAfter
		}
		found = append(found, c)
	}
	return found
}

// maxClaims bounds the part of a token that is looked at.
const maxClaims = 64 << 10

// tokenExpiry is the time that a JWT says it ends at; zero when it is none. The token is not verified: that is the
// server's to do.
func tokenExpiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || len(parts[1]) > maxClaims {
		return time.Time{}
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Expiry float64 `json:"exp"`
	}
	if json.Unmarshal(text, &claims) != nil || claims.Expiry <= 0 || claims.Expiry > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Expiry), 0)
}
