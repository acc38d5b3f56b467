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

// removed is what a secret is written as.
const removed = "[removed]"

// Secret is a token or part of one. However it is printed, it does not show.
type Secret string

// Format writes a placeholder, whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(removed)) }

// String is a placeholder.
func (Secret) String() string { return removed }

// LogValue is a placeholder.
func (Secret) LogValue() slog.Value { return slog.StringValue(removed) }

// MarshalText is a placeholder: what is meant to be sent is converted to a string first.
func (Secret) MarshalText() ([]byte, error) { return []byte(removed), nil }

// Request is one exchange that is asked for, with RFC 8693's parameters. Empty fields were not given.
type Request struct {
	Subject       Secret
	SubjectType   string
	Actor         Secret
	ActorType     string
	Resources     []string
	Audiences     []string
	Scope         string
	RequestedType string

	// owner is whose the subject token is, where it is the workload's own; then a held token does for its successors.
	owner string
}

// Token is what an exchange gives.
type Token struct {
	// Access is the token, IssuedType its type, and Type the way to use it: Bearer.
	Access     Secret
	IssuedType string
	Type       string
	// Scope is what the token is good for; empty when it is what was asked for.
	Scope string
	// Refresh is rarely given.
	Refresh Secret
	// Expires is when the token ends; zero when nobody said, and then it is given out once and not kept.
	Expires time.Time
}

// Exchanger gets a token for a checked request from somewhere. It is used by several goroutines at a time, returns soon
// after the context ends, and tells with an *Error what the client did wrong; any other error is a trouble of its own,
// and may pass.
type Exchanger interface {
	// Name says where tokens come from, for people.
	Name() string
	Exchange(ctx context.Context, request Request) (Token, error)
}

// Fetcher gives the workload's own token. It is used by several goroutines at a time.
type Fetcher interface {
	Fetch(ctx context.Context) (Secret, error)
}
