package sts

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/httpguard"
)

// TokenPath and statusPath are the paths of the server.
const (
	TokenPath  = "/token"
	statusPath = "/stsStatus"
)

// handler returns the handler of all paths. It rejects requests from other machines, and requests that web pages of
// other sites caused.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+TokenPath, Handler(s.Token, s.config.Now, s.answered))
	mux.HandleFunc("GET "+statusPath, s.serveStatus)
	return onlyLoopback(httpguard.Handler(mux))
}

// onlyLoopback rejects requests from other machines. The server listens on loopback, but redirection rules may send
// connections of other machines to its port.
func onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !peer.Addr().Unmap().IsLoopback() {
			http.Error(w, "tokens are issued only to clients on loopback", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answer is the response to a successful request, specified by RFC 8693, section 2.2.1.
type answer struct {
	AccessToken     string `json:"access_token"`
	IssuedTokenType string `json:"issued_token_type"`
	TokenType       string `json:"token_type"`
	ExpiresIn       int64  `json:"expires_in,omitempty"`
	Scope           string `json:"scope,omitempty"`
	RefreshToken    string `json:"refresh_token,omitempty"`
}

// Handler returns a handler of token requests. It parses requests as strictly as RFC 8693 and RFC 6749 require, and
// calls grant for the token. If grant returns an *Error, the client receives it. For any other error, the client
// receives status 500. After each request, the handler calls answered with the error response, or with nil after a
// success. now returns the current time, from which the handler computes expires_in.
//
// Handler does not restrict the clients: the caller must do this.
func Handler(grant func(context.Context, Request) (Token, error), now func() time.Time, answered func(*Error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := readRequest(w, r)
		var token Token
		if err == nil {
			token, err = grant(r.Context(), request)
		}
		if err != nil {
			refusal := asRefusal(err)
			answered(refusal)
			refusal.write(w)
			return
		}
		answered(nil)
		writeJSON(w, http.StatusOK, answerOf(token, now()))
	})
}

// answered counts a response, and logs refusal unless it is nil.
func (s *Server) answered(refusal *Error) {
	if refusal == nil {
		s.metrics.answered("granted")
		return
	}
	s.metrics.answered(refusal.Code)
	s.config.Logger.Debug("a token request was rejected", "status", refusal.Status, "error", presentable(refusal.Error()))
}

func asRefusal(err error) *Error {
	var refusal *Error
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.Is(err, context.DeadlineExceeded):
		return unable(errors.New("the token exchange timed out"))
	}
	return unable(err)
}

func answerOf(t Token, now time.Time) answer {
	a := answer{
		AccessToken:     string(t.Access),
		IssuedTokenType: t.IssuedType,
		TokenType:       t.Type,
		Scope:           t.Scope,
		RefreshToken:    string(t.Refresh),
	}
	if !t.Expires.IsZero() { // at least 1: some clients treat expires_in 0 as no expiry
		a.ExpiresIn = max(int64(t.Expires.Sub(now)/time.Second), 1)
	}
	return a
}

// tokenStatus describes a cached token on the page /stsStatus. Token is always empty; Istio's agent has the same field.
type tokenStatus struct {
	TokenType  string `json:"token_type"`
	IssueTime  string `json:"issue_time"`
	ExpireTime string `json:"expire_time"`
	Token      string `json:"token"`
}

func (s *Server) serveStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"tokens": s.tokens()})
}

func (s *Server) tokens() []tokenStatus {
	leases := s.cache.leases()
	slices.SortFunc(leases, func(a, b lease) int { return a.expires.Compare(b.expires) })
	list := []tokenStatus{}
	for _, l := range leases {
		list = append(list, tokenStatus{
			TokenType:  l.kind,
			IssueTime:  l.issued.UTC().Format(time.RFC3339),
			ExpireTime: l.expires.UTC().Format(time.RFC3339),
		})
	}
	return list
}
