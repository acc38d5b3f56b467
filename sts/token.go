package sts

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Identifiers of RFC 8693.
const (
	GrantType       = "urn:ietf:params:oauth:grant-type:token-exchange"
	JWTType         = "urn:ietf:params:oauth:token-type:jwt"
	AccessTokenType = "urn:ietf:params:oauth:token-type:access_token"
)

// removed replaces a printed secret.
const removed = "[removed]"

// Secret is a token or a part of one. No way of printing shows it.
type Secret string

// Format prints a placeholder, whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(removed)) }

// String returns a placeholder.
func (Secret) String() string { return removed }

// LogValue returns a placeholder.
func (Secret) LogValue() slog.Value { return slog.StringValue(removed) }

// MarshalText returns a placeholder. To send a secret, convert it to a string first.
func (Secret) MarshalText() ([]byte, error) { return []byte(removed), nil }

// Request is a request for an exchange with RFC 8693's parameters. Empty fields are missing parameters.
type Request struct {
	Subject       Secret
	SubjectType   string
	Actor         Secret
	ActorType     string
	Resources     []string
	Audiences     []string
	Scope         string
	RequestedType string

	// owner is the owner of the subject token if it is the workload's. A cached token is then also valid for the
	// successors of the subject token.
	owner string
}

// Token is the result of an exchange.
type Token struct {
	// Access is the token, IssuedType its type, and Type its usage: Bearer.
	Access     Secret
	IssuedType string
	Type       string
	// Scope is the token's scope; empty if it equals the requested scope.
	Scope string
	// Refresh is a refresh token; rarely present.
	Refresh Secret
	// Expires is the expiry; zero if unknown. A token without an expiry is not cached.
	Expires time.Time
}

// Exchanger issues a token for a checked request. It must be safe for concurrent use and return soon after the context
// ends. It returns an *Error for an error of the client, and any other error for a failure that may be temporary.
type Exchanger interface {
	// Name describes the source of the tokens, for people.
	Name() string
	Exchange(ctx context.Context, request Request) (Token, error)
}

// Fetcher returns the workload's own token. It must be safe for concurrent use.
type Fetcher interface {
	Fetch(ctx context.Context) (Secret, error)
}
