package sts

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"time"
)

// TokenPath and StatusPath are where the server answers.
const (
	TokenPath  = "/token"
	StatusPath = "/stsStatus"
)

// handler serves by path. A method that a path does not have is answered with 405 by the mux.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+TokenPath, Handler(s.Token, s.config.Now, s.answered))
	mux.HandleFunc("GET "+StatusPath, s.serveStatus)
	return onlyLoopback(mux)
}

// onlyLoopback keeps out what a redirection may have sent to the port from elsewhere.
func onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !peer.Addr().Unmap().IsLoopback() {
			http.Error(w, "tokens are given out on loopback only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answer is RFC 8693's, section 2.2.1.
type answer struct {
	AccessToken     string `json:"access_token"`
	IssuedTokenType string `json:"issued_token_type"`
	TokenType       string `json:"token_type"`
	ExpiresIn       int64  `json:"expires_in,omitempty"`
	Scope           string `json:"scope,omitempty"`
	RefreshToken    string `json:"refresh_token,omitempty"`
}

// Handler answers token requests: it reads them as strictly as RFC 8693 and RFC 6749 have it, and asks grant for the
// token. An *Error of grant's is the client's to know; any other error is told as the server's own. answered is told of
// each request, with nil when a token was given. now is the clock by which a token's expiry is told.
//
// It says nothing of where requests may come from: that is for whoever serves it.
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

// answered counts an answer.
func (s *Server) answered(refusal *Error) {
	if refusal == nil {
		s.metrics.answered("granted")
		return
	}
	s.metrics.answered(refusal.Code)
	s.config.Logger.Debug("a token request was refused", "status", refusal.Status, "error", presentable(refusal.Error()))
}

func asRefusal(err error) *Error {
	var refusal *Error
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.Is(err, context.DeadlineExceeded):
		return unable(errors.New("the exchange took too long"))
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
	if !t.Expires.IsZero() { // no client takes a token without a whole second left for one that lasts for ever
		a.ExpiresIn = max(int64(t.Expires.Sub(now)/time.Second), 1)
	}
	return a
}

// tokenStatus is a token as /stsStatus shows it: without the token, although there is a field for it.
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
