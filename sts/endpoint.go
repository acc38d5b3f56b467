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

// EndpointConfig says where tokens are exchanged by RFC 8693.
type EndpointConfig struct {
	// URL is the token endpoint: https, or http on loopback.
	URL string
	// RootFile holds the PEM certificates that the server's has to lead to; empty is the system's.
	RootFile string
	// Policy narrows what is offered to the server.
	Policy tlspolicy.Policy
	// ClientID and ClientSecret, when set, are sent as RFC 6749 section 2.3.1 has it (HTTP Basic). The secret is
	// fetched for each exchange.
	ClientID     string
	ClientSecret Fetcher
	// Now is time; nil is the machine's.
	Now func() time.Time
}

// Endpoint exchanges tokens at a server that speaks RFC 8693: all that the client asked for is passed on.
type Endpoint struct {
	config EndpointConfig
	url    *url.URL
	*upstream
}

// NewEndpoint checks the configuration.
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

// Name is the endpoint's address.
func (e *Endpoint) Name() string { return place(e.url) }

// Exchange asks the endpoint.
func (e *Endpoint) Exchange(ctx context.Context, request Request) (Token, error) {
	secret, err := e.secret(ctx)
	if err != nil {
		return Token{}, err
	}
	form := request.form()
	asked := e.config.Now()
	r, err := e.ask(ctx, func(ctx context.Context) (*http.Request, error) {
		post, err := newForm(ctx, e.url.String(), form)
		if err == nil && e.config.ClientID != "" {
			post.SetBasicAuth(url.QueryEscape(e.config.ClientID), url.QueryEscape(string(secret)))
		}
		return post, err
	})
	if err != nil {
		return Token{}, err
	}
	return r.token(e.Name(), asked)
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

// form is the request as RFC 8693 section 2.1 sends it.
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

// token reads the answer of a token endpoint that was asked at the given time.
func (r reply) token(from string, asked time.Time) (Token, error) {
	if r.status != http.StatusOK {
		return Token{}, r.refusal(from)
	}
	token, err := parseToken(r.body, asked)
	if err != nil {
		return Token{}, fmt.Errorf("%s gave an answer that is not good: %w", from, err)
	}
	return token, nil
}

// longest is the longest life that a token is believed to have.
const longest = 365 * 24 * time.Hour

func parseToken(body []byte, asked time.Time) (t Token, err error) {
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
			t.Expires, err = readLife(value, asked)
			return err
		}
		return nil
	})
	switch {
	case err != nil:
		return Token{}, errors.New("it is not the JSON object of RFC 8693")
	case !isCredential(t.Access):
		return Token{}, errors.New("it has no access_token that could be sent in a header")
	case t.Type == "":
		return Token{}, errors.New("it has no token_type")
	}
	if t.IssuedType == "" {
		t.IssuedType = AccessTokenType
	}
	return t, nil
}

// readLife takes a number of seconds, which some servers write as a string.
func readLife(value json.RawMessage, asked time.Time) (time.Time, error) {
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
	return asked.Add(time.Duration(min(seconds, longest.Seconds())) * time.Second), nil
}

// isCredential: visible ASCII letters, as a header can carry them.
func isCredential(s Secret) bool {
	return s != "" && !strings.ContainsFunc(string(s), func(r rune) bool { return r <= ' ' || r > '~' })
}

// passedOn are the codes that tell the client what is wrong with its request. What is wrong with the agent's own
// standing there is not for the client to mend.
var passedOn = map[string]bool{
	CodeInvalidRequest: true, CodeInvalidGrant: true, CodeInvalidScope: true, CodeInvalidTarget: true,
}

func (r reply) refusal(from string) error {
	var e struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	if json.Unmarshal(r.body, &e) != nil || e.Error == "" {
		return r.stranger(from)
	}
	if r.status >= http.StatusBadRequest && passedOn[e.Error] {
		return refuse(e.Error, "%s: %s", from, presentable(e.Description))
	}
	return fmt.Errorf("%s answered with status %d, %s: %s", from, r.status, presentable(e.Error), presentable(e.Description))
}

// stranger is an error in another form than OAuth's. Google's exchange has both: its own form when the API is not enabled
// for a project, for instance, or too much was asked of it.
func (r reply) stranger(from string) error {
	said := r.googleError()
	if said == "" {
		return fmt.Errorf("%s answered with status %d", from, r.status)
	}
	return fmt.Errorf("%s answered with status %d, %s", from, r.status, said)
}

// googleError is what an error in the form of Google's APIs says, or nothing.
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
