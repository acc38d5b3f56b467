package sts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// EndpointConfig configures an Endpoint.
type EndpointConfig struct {
	// URL is the token endpoint: https, or http on loopback.
	URL string
	// RootFile is a PEM file with root certificates that verify the server. Empty: the system's roots.
	RootFile string
	// Policy restricts the TLS versions and algorithms.
	Policy tlspolicy.Policy
	// ClientID and ClientSecret, if set, are sent by HTTP Basic authentication (RFC 6749 section 2.3.1). The secret is
	// fetched for each exchange.
	ClientID     string
	ClientSecret Fetcher
	// Now returns the time; nil: time.Now.
	Now func() time.Time
}

// Endpoint exchanges tokens at a server that supports RFC 8693. It forwards all parameters of the client.
type Endpoint struct {
	config EndpointConfig
	url    *url.URL
	*upstream
}

// NewEndpoint returns an Endpoint, or an error for an invalid configuration.
func NewEndpoint(config EndpointConfig) (*Endpoint, error) {
	u, err := checkURL("token exchange endpoint", config.URL)
	if err != nil {
		return nil, fmt.Errorf("sts: %w", err)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Endpoint{config: config, url: u, upstream: newUpstream(dial.TLS{RootFile: config.RootFile, Policy: config.Policy})}, nil
}

// Name returns the endpoint's address.
func (e *Endpoint) Name() string { return withoutQuery(e.url) }

// Exchange implements Exchanger.
func (e *Endpoint) Exchange(ctx context.Context, request Request) (Token, error) {
	secret, err := e.secret(ctx)
	if err != nil {
		return Token{}, err
	}
	form := request.form()
	sentAt := e.config.Now()
	r, err := e.send(ctx, func(ctx context.Context) (*http.Request, error) {
		post, err := newForm(ctx, e.url.String(), form)
		if err == nil && e.config.ClientID != "" {
			post.SetBasicAuth(url.QueryEscape(e.config.ClientID), url.QueryEscape(string(secret)))
		}
		return post, err
	})
	if err != nil {
		return Token{}, err
	}
	return r.token(e.Name(), sentAt)
}

func (e *Endpoint) secret(ctx context.Context) (Secret, error) {
	if e.config.ClientSecret == nil {
		return "", nil
	}
	secret, err := e.config.ClientSecret.Fetch(ctx)
	if err != nil {
		return "", fmt.Errorf("the client secret for %s: %w", e.Name(), err)
	}
	return secret, nil
}

// form returns the request's parameters as a form (RFC 8693 section 2.1).
func (r Request) form() url.Values {
	form := url.Values{
		"grant_type":         {GrantType},
		"subject_token":      {string(r.Subject)},
		"subject_token_type": {r.SubjectType},
	}
	for name, value := range map[string]string{
		"actor_token": string(r.Actor), "actor_token_type": r.ActorType,
		"scope": r.Scope, "requested_token_type": r.RequestedType,
	} {
		if value != "" {
			form.Set(name, value)
		}
	}
	for _, v := range r.Resources {
		form.Add("resource", v)
	}
	for _, v := range r.Audiences {
		form.Add("audience", v)
	}
	return form
}

func newForm(ctx context.Context, address string, form url.Values) (*http.Request, error) {
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	post.Header.Set("Content-Type", formType)
	post.Header.Set("Accept", jsonType)
	return post, nil
}

// token returns the token in r, the response of a token endpoint. endpoint is the endpoint's name, for errors. sentAt
// is the time of the request, at which the token's lifetime begins.
func (r reply) token(endpoint string, sentAt time.Time) (Token, error) {
	if r.status != http.StatusOK {
		return Token{}, r.refusal(endpoint)
	}
	token, err := parseToken(r.body, sentAt)
	if err != nil {
		return Token{}, fmt.Errorf("%s sent an invalid response: %w", endpoint, err)
	}
	return token, nil
}

// maxLifetime limits the lifetime of a token from a server. A longer lifetime is shortened.
const maxLifetime = 365 * 24 * time.Hour

func parseToken(body []byte, sentAt time.Time) (t Token, err error) {
	err = eachMember(body, func(name string, value json.RawMessage) error {
		switch name {
		case "access_token":
			return json.Unmarshal(value, (*string)(&t.Access))
		case "issued_token_type":
			return json.Unmarshal(value, &t.IssuedType)
		case "token_type":
			return json.Unmarshal(value, &t.Type)
		case "scope":
			return json.Unmarshal(value, &t.Scope)
		case "refresh_token":
			return json.Unmarshal(value, (*string)(&t.Refresh))
		case "expires_in":
			t.Expires, err = readLife(value, sentAt)
			return err
		}
		return nil
	})
	switch {
	case err != nil:
		return Token{}, errors.New("it is not the JSON object that RFC 8693 specifies")
	case !isCredential(t.Access):
		return Token{}, errors.New("it has no valid access_token")
	case t.Type == "":
		return Token{}, errors.New("it has no token_type")
	}
	if t.IssuedType == "" {
		t.IssuedType = AccessTokenType
	}
	return t, nil
}

// readLife parses expires_in and returns the time of expiry, or zero for null. It accepts a string, because some
// servers send the number of seconds as a string.
func readLife(value json.RawMessage, sentAt time.Time) (time.Time, error) {
	var number json.Number
	if err := json.Unmarshal(value, &number); err != nil {
		return time.Time{}, err
	}
	if number == "" { // null
		return time.Time{}, nil
	}
	seconds, err := number.Float64()
	if err != nil || seconds < 0 {
		return time.Time{}, errors.New("not a number of seconds")
	}
	return sentAt.Add(time.Duration(min(seconds, maxLifetime.Seconds())) * time.Second), nil
}

// isCredential reports whether s is not empty and consists of visible ASCII characters, as a header requires.
func isCredential(s Secret) bool {
	return s != "" && !strings.ContainsFunc(string(s), func(r rune) bool { return r <= ' ' || r > '~' })
}

// forwardedCodes are the error codes that are forwarded to the client, because its request caused the error. Other
// codes concern the agent's credentials at the server, which the client cannot fix.
var forwardedCodes = map[string]bool{
	CodeInvalidRequest: true, CodeInvalidGrant: true, CodeInvalidScope: true, CodeInvalidTarget: true,
}

func (r reply) refusal(from string) error {
	var e struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	if json.Unmarshal(r.body, &e) != nil || e.Error == "" {
		return r.otherError(from)
	}
	if r.status >= http.StatusBadRequest && forwardedCodes[e.Error] {
		return refuse(e.Error, "%s: %s", from, presentable(e.Description))
	}
	return fmt.Errorf("%s responded with status %d, %s: %s", from, r.status, presentable(e.Error), presentable(e.Description))
}

// otherError returns the error for an error response that is not in OAuth's format. Google's APIs use a format of their
// own, for example if an API is not enabled for the project or a quota is exceeded.
func (r reply) otherError(from string) error {
	message := r.googleError()
	if message == "" {
		return fmt.Errorf("%s responded with status %d", from, r.status)
	}
	return fmt.Errorf("%s responded with status %d, %s", from, r.status, message)
}

// googleError returns the message of an error in the form of Google's APIs, or "".
func (r reply) googleError() string {
	var e struct {
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(r.body, &e) != nil || e.Error.Status == "" && e.Error.Message == "" {
		return ""
	}
	return presentable(e.Error.Status) + ": " + presentable(e.Error.Message)
}
