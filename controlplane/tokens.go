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
	"github.com/pilotfish-mesh/pilotfish/sts"
)

// Where the tokens' keys are, as on a Kubernetes API server.
const (
	discoveryPath = "/.well-known/openid-configuration"
	keysPath      = "/openid/v1/jwks"
)

// exchange turns the token by which a workload is known to the control plane into one by which others know it
// (RFC 8693), and publishes what they need to verify it (OpenID Connect Discovery 1.0).
type exchange struct {
	authority *ca.Authority
	issuer    string
	log       *slog.Logger
	results   *prometheus.CounterVec
	keys      jose.JSONWebKeySet
}

func (s *Server) newExchange(at netip.AddrPort) (*exchange, error) {
	issuer, err := issuerURL(s.cfg.TokenIssuer, at)
	if err != nil {
		return nil, err
	}
	keys, err := s.authority.TokenKeys()
	if err != nil {
		return nil, err
	}
	results := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilotfish_token_exchanges_total",
		Help: "Answers to token requests, by result: granted, or the code of RFC 6749 of the refusal."}, []string{"result"})
	if err := s.registry.Register(results); err != nil {
		return nil, fmt.Errorf("registering the metrics of the token exchange: %w", err)
	}
	return &exchange{authority: s.authority, issuer: issuer, log: s.log, results: results, keys: keys}, nil
}

// issuerURL is the address that stands in the tokens: the one that was given, or where they are made.
func issuerURL(given string, at netip.AddrPort) (string, error) {
	if given == "" {
		if at.Addr().IsUnspecified() {
			return fmt.Sprintf("https://istiod.istio-system.svc:%d", at.Port()), nil
		}
		return "https://" + at.String(), nil
	}
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" {
		return "", fmt.Errorf("the issuer of tokens %q is not an address such as https://mesh.example: write it so, without "+
			"a path; whoever verifies tokens finds the keys below it", given)
	}
	return given, nil
}

// handler serves the port for tokens.
func (e *exchange) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+sts.TokenPath, sts.Handler(e.grant, time.Now, e.answered))
	mux.HandleFunc("GET "+discoveryPath, e.serveDiscovery)
	mux.HandleFunc("GET "+keysPath, func(w http.ResponseWriter, _ *http.Request) { publish(w, "application/jwk-set+json", e.keys) })
	return mux
}

// grant gives a workload a token of its own identity for whom it names.
func (e *exchange) grant(_ context.Context, r sts.Request) (sts.Token, error) {
	if r.Actor != "" {
		return sts.Token{}, refusal(sts.CodeInvalidRequest, errors.New("actor_token is given, and nobody can act for another here"))
	}
	if r.RequestedType != "" && r.RequestedType != sts.JWTType && r.RequestedType != sts.AccessTokenType {
		return sts.Token{}, refusal(sts.CodeInvalidRequest, fmt.Errorf("requested_token_type has to be %s", sts.JWTType))
	}
	workload, err := e.authority.VerifyToken(string(r.Subject))
	if err != nil {
		e.log.Warn("a token exchange was refused: the caller did not prove who it is", "reason", err)
		return sts.Token{}, refusal(sts.CodeInvalidRequest, fmt.Errorf("subject_token: %w", err))
	}
	audiences := slices.Concat(r.Audiences, r.Resources)
	token, expires, err := e.authority.IssueJWTSVID(workload, e.issuer, audiences)
	if err != nil {
		return sts.Token{}, refusal(sts.CodeInvalidTarget, err)
	}
	e.log.Debug("exchanged a token", "caller", workload.SPIFFEID(), "audiences", audiences)
	issued := sts.JWTType
	if r.RequestedType != "" {
		issued = r.RequestedType
	}
	return sts.Token{Access: sts.Secret(token), IssuedType: issued, Type: "Bearer", Expires: expires}, nil
}

func refusal(code string, err error) *sts.Error {
	return &sts.Error{Status: http.StatusBadRequest, Code: code, Description: err.Error()}
}

func (e *exchange) answered(refused *sts.Error) {
	result := "granted"
	if refused != nil {
		result = refused.Code
	}
	e.results.WithLabelValues(result).Inc()
}

// serveDiscovery has what a verifier of tokens needs, and where they are got. Nobody logs in here, so the rest of the
// document's fields have nothing to say; Kubernetes' is of the same kind.
func (e *exchange) serveDiscovery(w http.ResponseWriter, _ *http.Request) {
	publish(w, "application/json", map[string]any{
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

// publish answers with what is for everyone, and may be kept for a while.
func publish(w http.ResponseWriter, media string, v any) {
	w.Header().Set("Content-Type", media)
	w.Header().Set("Cache-Control", "public, max-age=300")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone, which is its own affair
}
