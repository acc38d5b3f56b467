package dial

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Kinds of credentials.
const (
	KindToken             = "token"
	KindClientCertificate = "client certificate"
)

// Credential describes a token or client certificate that was read from the agent's file.
type Credential struct {
	Kind, File string
	// NotAfter is the expiry. It is zero if the credential has none, for example if a token is not a JWT.
	NotAfter time.Time
	// Err is the reason why the credential cannot be used, or nil.
	Err error
}

// Problem returns the reason why the credential cannot be used at the time now, with the remedy. It returns "" if the
// credential can be used.
func (c Credential) Problem(now time.Time) string {
	switch {
	case c.Err != nil:
		return c.Err.Error()
	case !c.NotAfter.IsZero() && !now.Before(c.NotAfter):
		return fmt.Sprintf("the %s in %s expired at %s, %s ago; check the process that renews it",
			c.Kind, c.File, c.NotAfter.UTC().Format(time.RFC3339), now.Sub(c.NotAfter).Round(time.Second))
	}
	return ""
}

// Credentials reads the configured credentials: the token, the client certificate, or both. For a plaintext connection,
// it returns none.
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
		pair, err := s.TLS.loadClientCertificate()
		if err != nil {
			c.Err = fmt.Errorf("client certificate %s with key %s: %w", s.TLS.CertFile, s.TLS.KeyFile, err)
		} else if pair.Leaf != nil {
			c.NotAfter = pair.Leaf.NotAfter
		}
		found = append(found, c)
	}
	return found
}

// maxClaims limits the length of a JWT's encoded claims.
const maxClaims = 64 << 10

// tokenExpiry returns the expiry of a JWT, or zero if token is not a JWT or has no expiry. It does not verify the
// token, because the server does.
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
