package sts

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// Codes of errors, by RFC 6749 section 5.2 and RFC 8693 section 2.2.2.
const (
	CodeInvalidRequest       = "invalid_request"
	CodeInvalidClient        = "invalid_client"
	CodeInvalidGrant         = "invalid_grant"
	CodeInvalidScope         = "invalid_scope"
	CodeInvalidTarget        = "invalid_target"
	CodeUnauthorizedClient   = "unauthorized_client"
	CodeUnsupportedGrantType = "unsupported_grant_type"
)

// mostDescription is how long a description may be.
const mostDescription = 400

// Error is a refusal: what a client is told when it gets no token.
type Error struct {
	// Status is HTTP's, Code one of the above.
	Status int
	Code   string
	// Description is for people.
	Description string
}

func (e *Error) Error() string { return e.Code + ": " + e.Description }

// refuse tells the client that the request is at fault.
func refuse(code, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: code, Description: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error { return refuse(CodeInvalidRequest, format, args...) }

// with is the refusal under another HTTP status.
func (e *Error) with(status int) *Error {
	e.Status = status
	return e
}

// unable is the answer when the exchange failed for a reason that is not the client's: RFC 8693 has the code
// invalid_target for a server that cannot give a token, and Istio's agent sends it with status 500, at which clients try
// again.
func unable(err error) *Error {
	return &Error{Status: http.StatusInternalServerError, Code: CodeInvalidTarget, Description: err.Error()}
}

func (e *Error) write(w http.ResponseWriter) {
	writeJSON(w, e.Status, struct {
		Error       string `json:"error"`
		Description string `json:"error_description,omitempty"`
	}{e.Code, presentable(e.Description)})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Pragma", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that left needs no answer
}

// run matches what tokens and addresses are made of, and ordinary is what a host's name or a word can be. They are large
// once they are compiled, and most agents never need them.
var (
	run = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`[A-Za-z0-9_.~+=/-]{12,}`)
	})
	ordinary = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9_.~+=-]{0,31}$|^[a-z0-9-]{1,31}(\.[a-z0-9-]{1,31})+$`)
	})
	marked = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(eyJ|ya29\.)`) })
)

// withoutCredentials takes out what could be one.
func withoutCredentials(text string) string {
	return run().ReplaceAllStringFunc(text, func(found string) string {
		for part := range strings.SplitSeq(found, "/") {
			if marked().MatchString(part) || !ordinary().MatchString(part) {
				return removed
			}
		}
		return found
	})
}

// presentable makes a text fit for a description, as RFC 6749 has it: no control characters, quotes, backslashes or
// letters beyond ASCII; and fit for a log: no credential, and of a bounded length.
func presentable(text string) string {
	text = withoutCredentials(text)
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r < 0x20 || r > 0x7e || r == '\\':
			return ' '
		}
		return r
	}, text)
	if len(text) > mostDescription {
		return text[:mostDescription] + "..."
	}
	return text
}
