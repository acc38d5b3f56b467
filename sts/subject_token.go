package sts

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
)

// defaultLeeway is the default of Check.Leeway.
const defaultLeeway = 30 * time.Second

// Check determines which subject tokens may be sent to the exchange server. It rejects expired tokens, and tokens of
// other issuers or audiences. It does not verify signatures, because the exchange server verifies them before it issues
// a token.
type Check struct {
	// Issuers are the accepted issuers; empty accepts any.
	Issuers []string
	// Audiences are the accepted audiences. A token must have at least one of them. Empty accepts any.
	Audiences []string
	// Leeway is the accepted clock difference between the issuer and this machine; zero means 30 s.
	Leeway time.Duration
}

// claims are the claims of a token that Check reads.
type claims struct {
	issuer    string
	subject   string
	audiences []string
	expires   time.Time
	notBefore time.Time
}

// verify parses token and checks its claims at the time now. The error does not contain the token.
func (c Check) verify(token Secret, now time.Time) (claims, error) {
	got, err := parseClaims(string(token))
	if err != nil {
		return claims{}, err
	}
	return got, c.allow(got, now)
}

func (c Check) allow(got claims, now time.Time) error {
	leeway := c.Leeway
	if leeway <= 0 {
		leeway = defaultLeeway
	}
	switch {
	case got.expires.IsZero():
		return errors.New("has no expiry (exp)")
	case !now.Before(got.expires.Add(leeway)):
		return errors.New("expired at " + got.expires.UTC().Format(time.RFC3339))
	case now.Add(leeway).Before(got.notBefore):
		return errors.New("is not valid before " + got.notBefore.UTC().Format(time.RFC3339))
	case len(c.Issuers) > 0 && !slices.Contains(c.Issuers, got.issuer):
		return errors.New("has the issuer " + presentable(got.issuer) + ", but must be issued by " + strings.Join(c.Issuers, " or "))
	case len(c.Audiences) > 0 && !slices.ContainsFunc(got.audiences, func(a string) bool { return slices.Contains(c.Audiences, a) }):
		return errors.New("has the audience " + presentable(strings.Join(got.audiences, ", ")) + ", but must have " + strings.Join(c.Audiences, " or "))
	}
	return nil
}

var errNotJWT = errors.New("is not a signed JWT")

// parseClaims returns the claims of token, a signed JWT in compact form. It does not verify the signature.
func parseClaims(token string) (claims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || parts[2] == "" {
		return claims{}, errNotJWT
	}
	var decoded [3][]byte
	for i, part := range parts {
		b, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil || strings.ContainsAny(part, "\r\n") { // the decoder ignores line breaks
			return claims{}, errNotJWT
		}
		decoded[i] = b
	}
	if err := checkHeader(decoded[0]); err != nil {
		return claims{}, err
	}
	return readClaims(decoded[1])
}

func checkHeader(header []byte) error {
	var algorithm string
	err := eachMember(header, func(name string, value json.RawMessage) error {
		if name == "alg" {
			return json.Unmarshal(value, &algorithm)
		}
		return nil
	})
	if err != nil || algorithm == "" || strings.EqualFold(algorithm, "none") {
		return errNotJWT
	}
	return nil
}

func readClaims(payload []byte) (c claims, err error) {
	err = eachMember(payload, func(name string, value json.RawMessage) (err error) {
		switch name {
		case "iss":
			err = json.Unmarshal(value, &c.issuer)
		case "sub":
			err = json.Unmarshal(value, &c.subject)
		case "aud":
			c.audiences, err = readAudiences(value)
		case "exp":
			c.expires, err = readDate(value)
		case "nbf":
			c.notBefore, err = readDate(value)
		}
		return err
	})
	if err != nil {
		return claims{}, errors.New("has invalid claims")
	}
	return c, nil
}

// readAudiences parses a string or a list of strings.
func readAudiences(value json.RawMessage) ([]string, error) {
	var one string
	if json.Unmarshal(value, &one) == nil {
		return []string{one}, nil
	}
	var several []string
	err := json.Unmarshal(value, &several)
	return several, err
}

// lastSecond is the end of the year 9999 in seconds since 1970. Later times cannot be formatted.
const lastSecond = 253402300799

// readDate parses seconds since 1970, with an optional fraction.
func readDate(value json.RawMessage) (time.Time, error) {
	var seconds float64
	if err := json.Unmarshal(value, &seconds); err != nil {
		return time.Time{}, err
	}
	if seconds < 1 || seconds > lastSecond {
		return time.Time{}, errors.New("not a date")
	}
	return time.Unix(int64(seconds), 0), nil
}
