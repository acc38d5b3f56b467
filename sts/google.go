package sts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Google's addresses, and the defaults of requests.
const (
	googleTokenURL         = "https://sts.googleapis.com/v1/token"
	googleImpersonationURL = "https://iamcredentials.googleapis.com"
	googleScope            = "https://www.googleapis.com/auth/cloud-platform"
	googleLife             = time.Hour
)

// GoogleConfig configures an exchange with Google Cloud.
type GoogleConfig struct {
	// Audience is the workload identity provider: "identitynamespace:<trust domain>:<provider>", or
	// "//iam.googleapis.com/projects/…/providers/…".
	Audience string
	// ServiceAccount is the e-mail address of the service account of the access token. Empty: the exchange returns the
	// federated token.
	ServiceAccount string
	// TokenURL and ImpersonationURL (scheme and host) replace Google's addresses.
	TokenURL, ImpersonationURL string
	// RootFile is a PEM file with root certificates that verify the servers. Empty: the system's roots.
	RootFile string
	// Policy restricts the TLS versions and algorithms.
	Policy tlspolicy.Policy
	// Now returns the time; nil: time.Now.
	Now func() time.Time
}

// Google exchanges the workload's token at Google Cloud. It first requests a federated token. If a service account is
// configured, it then exchanges the federated token for an access token of the account.
type Google struct {
	config        GoogleConfig
	tokenURL      *url.URL
	impersonation string
	*upstream
}

// NewGoogle returns an exchange with Google Cloud, or an error for an invalid configuration.
func NewGoogle(config GoogleConfig) (*Google, error) {
	if config.Audience == "" {
		return nil, fmt.Errorf("sts: no audience is set for Google's token exchange: write it as identitynamespace:<trust domain>:<provider>")
	}
	tokenURL, err := checkURL("Google's token exchange", cmp.Or(config.TokenURL, googleTokenURL))
	if err != nil {
		return nil, fmt.Errorf("sts: %w", err)
	}
	base, err := checkURL("Google's service account credentials", cmp.Or(config.ImpersonationURL, googleImpersonationURL))
	if err != nil {
		return nil, fmt.Errorf("sts: %w", err)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Google{
		config:   config,
		tokenURL: tokenURL,
		impersonation: strings.TrimSuffix(base.String(), "/") + "/v1/projects/-/serviceAccounts/" +
			url.PathEscape(config.ServiceAccount) + ":generateAccessToken",
		upstream: newUpstream(dial.TLS{RootFile: config.RootFile, Policy: config.Policy}),
	}, nil
}

// Name returns the exchange's address.
func (g *Google) Name() string { return withoutQuery(g.tokenURL) }

// Exchange implements Exchanger.
func (g *Google) Exchange(ctx context.Context, request Request) (Token, error) {
	if err := g.check(request); err != nil {
		return Token{}, err
	}
	scope := cmp.Or(request.Scope, googleScope)
	if g.config.ServiceAccount == "" {
		return g.federate(ctx, request, scope)
	}
	federated, err := g.federate(ctx, request, googleScope)
	if err != nil {
		return Token{}, err
	}
	return g.impersonate(ctx, federated.Access, scope)
}

// check returns an error if r has parameters that Google's exchange does not support. To ignore them would be a
// security risk: the client would receive a token for another purpose than it requested.
func (g *Google) check(r Request) error {
	switch {
	case r.RequestedType != "" && r.RequestedType != AccessTokenType:
		return invalid("requested_token_type must be %s", AccessTokenType)
	case r.Actor != "":
		return invalid("actor_token is not supported by Google's token exchange")
	case len(r.Resources) > 0:
		return refuse(CodeInvalidTarget, "resource is not supported by Google's token exchange")
	case slices.ContainsFunc(r.Audiences, func(a string) bool { return a != g.config.Audience }):
		return refuse(CodeInvalidTarget, "audience must be %s or be omitted", g.config.Audience)
	}
	return nil
}

func (g *Google) federate(ctx context.Context, request Request, scope string) (Token, error) {
	form := Request{
		Subject: request.Subject, SubjectType: request.SubjectType,
		Audiences: []string{g.config.Audience}, Scope: scope, RequestedType: AccessTokenType,
	}.form()
	sentAt := g.config.Now()
	r, err := g.send(ctx, func(ctx context.Context) (*http.Request, error) { return newForm(ctx, g.tokenURL.String(), form) })
	if err != nil {
		return Token{}, fmt.Errorf("requesting a federated token: %w", err)
	}
	return r.token(g.Name(), sentAt)
}

func (g *Google) impersonate(ctx context.Context, federated Secret, scope string) (Token, error) {
	body, err := json.Marshal(map[string]any{
		"scope": strings.Fields(scope), "lifetime": fmt.Sprintf("%ds", int(googleLife.Seconds())),
	})
	if err != nil {
		return Token{}, err
	}
	r, err := g.send(ctx, func(ctx context.Context) (*http.Request, error) {
		post, err := http.NewRequestWithContext(ctx, http.MethodPost, g.impersonation, strings.NewReader(string(body)))
		if err != nil {
			return nil, err
		}
		post.Header.Set("Content-Type", jsonType)
		post.Header.Set("Authorization", "Bearer "+string(federated))
		return post, nil
	})
	if err != nil {
		return Token{}, fmt.Errorf("requesting an access token of %s: %w", g.config.ServiceAccount, err)
	}
	token, err := parseAccessToken(r)
	if err != nil {
		return Token{}, fmt.Errorf("requesting an access token of %s: %w", g.config.ServiceAccount, err)
	}
	return token, nil
}

// parseAccessToken parses r, the response of Google's method generateAccessToken. It returns an error if r is an error
// response.
func parseAccessToken(r reply) (Token, error) {
	var answer struct {
		AccessToken string    `json:"accessToken"`
		ExpireTime  time.Time `json:"expireTime"`
	}
	err := json.Unmarshal(r.body, &answer)
	access := Secret(answer.AccessToken)
	switch {
	case r.status != http.StatusOK:
		return Token{}, fmt.Errorf("the server responded with status %d %s", r.status, r.googleError())
	case err != nil || !isCredential(access) || answer.ExpireTime.IsZero():
		return Token{}, fmt.Errorf("the response has no accessToken or no valid expireTime")
	}
	return Token{Access: access, IssuedType: AccessTokenType, Type: "Bearer", Expires: answer.ExpireTime}, nil
}
