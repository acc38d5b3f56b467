package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
	"github.com/pilotfish-mesh/pilotfish/sts"
)

// Paths at which verifiers find the keys of exchanged tokens. A Kubernetes API server has the same paths.
const (
	discoveryPath = "/.well-known/openid-configuration"
	keysPath      = "/openid/v1/jwks"
)

// maxExchange limits the body of a token request, in bytes. The body contains the token that proves the client's
// identity (at most 8 KiB), so the server must read it before it has authenticated the client.
const maxExchange = 16 << 10

// tokenExchange exchanges a workload's token for a token that third parties accept (RFC 8693). It publishes the keys
// with which third parties verify these tokens (OpenID Connect Discovery 1.0).
type tokenExchange struct {
	authority *ca.Authority
	issuer    string
	log       *slog.Logger
	results   *prometheus.CounterVec
	keys      jose.JSONWebKeySet
	refusals  loglimit.Limiter // limits log lines about unauthenticated clients
}

func (s *Server) newExchange(at netip.AddrPort) (*tokenExchange, error) {
	issuer, err := issuerURL(s.cfg.TokenIssuer, at)
	if err != nil {
		return nil, err
	}
	keys, err := s.authority.TokenKeys()
	if err != nil {
		return nil, err
	}
	results := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilotfish_token_exchanges_total",
		Help: "Responses to token requests, by result: granted, or the error code of RFC 6749."}, []string{"result"})
	if err := s.registry.Register(results); err != nil {
		return nil, fmt.Errorf("registering the metrics of the token exchange: %w", err)
	}
	return &tokenExchange{authority: s.authority, issuer: issuer, log: s.log, results: results, keys: keys}, nil
}

// issuerURL returns the issuer of exchanged tokens: configured, or a URL of the token port's address at if configured
// is "".
func issuerURL(configured string, at netip.AddrPort) (string, error) {
	if configured == "" {
		if at.Addr().IsUnspecified() {
			return fmt.Sprintf("https://istiod.istio-system.svc:%d", at.Port()), nil
		}
		return "https://" + at.String(), nil
	}
	u, err := url.Parse(configured)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" {
		return "", fmt.Errorf("the issuer of tokens %q is not a URL: use a URL such as https://mesh.example, without "+
			"a path; verifiers fetch the keys from paths below this URL", configured)
	}
	return configured, nil
}

// handler returns the handler of the token port.
func (e *tokenExchange) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+sts.TokenPath, http.MaxBytesHandler(sts.Handler(e.exchangeToken, time.Now, e.countResult), maxExchange))
	mux.HandleFunc("GET "+discoveryPath, e.serveDiscovery)
	mux.HandleFunc("GET "+keysPath, func(w http.ResponseWriter, _ *http.Request) { writePublicJSON(w, "application/jwk-set+json", e.keys) })
	return mux
}

// exchangeToken issues a JWT for the requested audiences, with the identity of the workload that the subject token
// proves.
func (e *tokenExchange) exchangeToken(ctx context.Context, r sts.Request) (sts.Token, error) {
	if r.Actor != "" {
		return sts.Token{}, exchangeError(sts.CodeInvalidRequest, errors.New("actor_token is not supported"))
	}
	if r.RequestedType != "" && r.RequestedType != sts.JWTType && r.RequestedType != sts.AccessTokenType {
		return sts.Token{}, exchangeError(sts.CodeInvalidRequest, fmt.Errorf("requested_token_type must be %s", sts.JWTType))
	}
	workload, err := e.authority.IdentifyToken(ctx, string(r.Subject))
	if err != nil {
		if unlogged, ok := e.refusals.Allow(time.Now(), refusalLogInterval); ok {
			e.log.Warn("refused a token exchange: the caller is not authenticated", "reason", err, "suppressedLines", unlogged)
		}
		return sts.Token{}, exchangeError(sts.CodeInvalidRequest, fmt.Errorf("subject_token: %w", err))
	}
	audiences := slices.Concat(r.Audiences, r.Resources)
	token, expires, err := e.authority.IssueJWTSVID(workload, e.issuer, audiences)
	if err != nil {
		return sts.Token{}, exchangeError(sts.CodeInvalidTarget, err)
	}
	e.log.Debug("exchanged a token", "caller", workload.SPIFFEID(), "audiences", audiences)
	issued := sts.JWTType
	if r.RequestedType != "" {
		issued = r.RequestedType
	}
	return sts.Token{Access: sts.Secret(token), IssuedType: issued, Type: "Bearer", Expires: expires}, nil
}

func exchangeError(code string, err error) *sts.Error {
	return &sts.Error{Status: http.StatusBadRequest, Code: code, Description: err.Error()}
}

func (e *tokenExchange) countResult(refused *sts.Error) {
	result := "granted"
	if refused != nil {
		result = refused.Code
	}
	e.results.WithLabelValues(result).Inc()
}

// serveDiscovery serves the discovery document. It contains only the token endpoint and the fields that verifiers of
// tokens need. As in the document of Kubernetes, there are no fields for logins of users.
func (e *tokenExchange) serveDiscovery(w http.ResponseWriter, _ *http.Request) {
	writePublicJSON(w, "application/json", map[string]any{
		"issuer":                                e.issuer,
		"jwks_uri":                              e.issuer + keysPath,
		"token_endpoint":                        e.issuer + sts.TokenPath,
		"grant_types_supported":                 []string{sts.GrantType},
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{string(jose.ES256)},
		"token_endpoint_auth_methods_supported": []string{"none"},
		"claims_supported":                      []string{"iss", "sub", "aud", "iat", "nbf", "exp", "jti"},
	})
}

// writePublicJSON writes a public, cacheable JSON response.
func writePublicJSON(w http.ResponseWriter, media string, v any) {
	w.Header().Set("Content-Type", media)
	w.Header().Set("Cache-Control", "public, max-age=300")
	_ = json.NewEncoder(w).Encode(v) // fails if the client has disconnected
}
