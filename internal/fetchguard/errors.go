package fetchguard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
)

// fetchError is an error whose text contains no data from the server. Unwrap returns the original error, which may
// quote the server.
type fetchError struct {
	text string
	err  error
}

func (e *fetchError) Error() string { return e.text }
func (e *fetchError) Unwrap() error { return e.err }

// HideAnswer returns an error of an HTTP client without text that the server sent. Errors of net/http contain such text
// if a response is malformed or redirects, and errors of crypto/x509 contain names in certificates. For an unknown
// error, the text is fallback.
func HideAnswer(err error, fallback string) error {
	return &fetchError{text: describe(err, fallback), err: err}
}

func describe(err error, fallback string) string {
	// Check for the guard's error first, because a net.OpError wraps it.
	if blocked := findBlocked(err); blocked != nil {
		return blocked.Error()
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return "resolving the host name: " + lookup.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Error()
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the server's certificate cannot be verified: " + describeCertificate(err)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || errors.Is(err, http.ErrSchemeMismatch) {
		return "the server does not use TLS"
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return "the server did not respond in time"
	case errors.Is(err, context.Canceled):
		return "the fetch was canceled"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the server closed the connection"
	}
	return fallback
}

// findBlocked returns the outermost error of a Guard in the chain of err, or nil.
func findBlocked(err error) error {
	for errors.Is(err, ErrBlocked) {
		inner := errors.Unwrap(err)
		if inner == nil || inner == ErrBlocked {
			return err
		}
		err = inner
	}
	return nil
}

func describeCertificate(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "its authority is unknown"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "it is not for this host name"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "it has expired or is not yet valid"
	}
	return "it is not valid"
}
