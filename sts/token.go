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

// removed is the placeholder that is printed instead of a secret.
const removed = "[removed]"

// Secret is a token or another secret. Formatting, logging and marshalling show a placeholder instead of its value.
type Secret string

// Format prints a placeholder for every formatting verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(removed)) }

// String returns a placeholder.
func (Secret) String() string { return removed }

// LogValue returns a placeholder.
func (Secret) LogValue() slog.Value { return slog.StringValue(removed) }

// MarshalText returns a placeholder. To send a secret, convert it to a string first.
func (Secret) MarshalText() ([]byte, error) { return []byte(removed), nil }

// Request contains the parameters of a token exchange (RFC 8693). An empty field is a missing parameter.
type Request struct {
	Subject       Secret
	SubjectType   string
	Actor         Secret
	ActorType     string
	Resources     []string
	Audiences     []string
	Scope         string
	RequestedType string

	// owner identifies the workload if Subject is the workload's current token; otherwise it is empty. Requests with
	// the same owner share cached tokens, even after the subject token was renewed.
	owner string
}

// Token is the result of an exchange.
type Token struct {
	// Access is the issued token. IssuedType is the URN of its type. Type describes how to use it, usually "Bearer".
	Access     Secret
	IssuedType string
	Type       string
	// Scope is the token's scope; empty if it equals the requested scope.
	Scope string
	// Refresh is a refresh token; usually empty.
	Refresh Secret
	// Expires is the expiry; zero if unknown. A token without an expiry is not cached.
	Expires time.Time
}

// Exchanger issues tokens for requests that the server has checked. It must be safe for concurrent use.
type Exchanger interface {
	// Name returns the exchanger's name for logs and errors.
	Name() string
	// Exchange issues a token. It must return soon after ctx ends. If the client caused an error, it returns an *Error.
	// Other errors may be temporary failures.
	Exchange(ctx context.Context, request Request) (Token, error)
}

// Fetcher returns a secret, for example the workload's own token. It must be safe for concurrent use.
type Fetcher interface {
	Fetch(ctx context.Context) (Secret, error)
}
