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
	mux.HandleFunc("POST "+TokenPath, s.serveToken)
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

func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	token, err := s.answerToken(w, r)
	if err != nil {
		refusal := asRefusal(err)
		s.metrics.answered(refusal.Code)
		s.config.Logger.Debug("a token request was refused", "status", refusal.Status, "error", presentable(refusal.Error()))
		refusal.write(w)
		return
	}
	s.metrics.answered("granted")
	writeJSON(w, http.StatusOK, s.answerOf(token))
}

func (s *Server) answerToken(w http.ResponseWriter, r *http.Request) (Token, error) {
	request, err := readRequest(w, r)
	if err != nil {
		return Token{}, err
	}
	return s.Token(r.Context(), request)
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

func (s *Server) answerOf(t Token) answer {
	a := answer{
		AccessToken:     string(t.Access),
		IssuedTokenType: t.IssuedType,
		TokenType:       t.Type,
		Scope:           t.Scope,
		RefreshToken:    string(t.Refresh),
	}
	if !t.Expires.IsZero() { // no client takes a token without a whole second left for one that lasts for ever
		a.ExpiresIn = max(int64(t.Expires.Sub(s.config.Now())/time.Second), 1)
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
