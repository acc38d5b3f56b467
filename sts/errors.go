package sts

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// Error codes of RFC 6749 section 5.2 and RFC 8693 section 2.2.2.
const (
	CodeInvalidRequest       = "invalid_request"
	CodeInvalidClient        = "invalid_client"
	CodeInvalidGrant         = "invalid_grant"
	CodeInvalidScope         = "invalid_scope"
	CodeInvalidTarget        = "invalid_target"
	CodeUnauthorizedClient   = "unauthorized_client"
	CodeUnsupportedGrantType = "unsupported_grant_type"
)

// maxDescription limits the length of a description.
const maxDescription = 400

// Error is the error response to a client.
type Error struct {
	// Status is the HTTP status. Code is one of the codes above.
	Status int
	Code   string
	// Description is a text for human readers.
	Description string
}

func (e *Error) Error() string { return e.Code + ": " + e.Description }

// refuse returns an error response with status 400 and the error code code.
func refuse(code, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: code, Description: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error { return refuse(CodeInvalidRequest, format, args...) }

// withStatus changes the HTTP status of the error.
func (e *Error) withStatus(status int) *Error {
	e.Status = status
	return e
}

// unable returns the error response for a valid request whose exchange failed. The code is invalid_target, which RFC
// 8693 specifies for a server that cannot issue a token. The status is 500, as with Istio's agent, so that clients
// retry.
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
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}

// Patterns that find credentials in a text. run matches a sequence of characters that tokens and addresses consist of.
// ordinary matches a host name or word, which is no credential. marked matches the beginning of a JWT or a Google
// access token. They are compiled on first use, because most agents do not need them.
var (
	run = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`[A-Za-z0-9_.~+=/-]{12,}`)
	})
	ordinary = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9_.~+=-]{0,31}$|^[a-z0-9-]{1,31}(\.[a-z0-9-]{1,31})+$`)
	})
	marked = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(eyJ|ya29\.)`) })
)

// withoutCredentials replaces each part of text that may be a token or secret by a placeholder.
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

// presentable returns text in a form that is safe to log and valid in an error_description of RFC 6749. It replaces
// credentials, control characters, double quotes, backslashes and non-ASCII letters, and truncates the text to
// maxDescription bytes.
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
	if len(text) > maxDescription {
		return text[:maxDescription] + "..."
	}
	return text
}
