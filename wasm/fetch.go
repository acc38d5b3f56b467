package wasm

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

var (
	// errMismatch means that the checksum of a fetched module is not the one that the control plane specified.
	errMismatch = errors.New("the filter's configuration specifies a different checksum")
	// errUnchanged means that the cached module is still current at the source.
	errUnchanged = errors.New("unchanged")
)

// statusError is an HTTP status other than 200.
type statusError struct{ code int }

func (e statusError) Error() string {
	return fmt.Sprintf("the server responded with status %d %s", e.code, http.StatusText(e.code))
}

// fetched is a fetched module in a temporary file.
type fetched struct {
	file string
	size int64
	// sum is the SHA-256 of the module. digest is the SHA-256 of its image or served file. etag is the HTTP ETag.
	sum, digest, etag string
}

// maxBackoff limits the delay between the retries of one fetch.
const maxBackoff = 10 * time.Second

// fetch fetches a module and retries transient failures. known is the cached module, or nil. If it is still current at
// the source, fetch returns errUnchanged.
func (m *Modules) fetch(ctx context.Context, module Module, known *entry) (*fetched, error) {
	retry := backoff.Backoff{Min: m.config.Backoff, Max: maxBackoff}
	for attempt := 0; ; attempt++ {
		f, err := m.attempt(ctx, module, known)
		for isFull(err) && m.store.dropUnused(known) {
			m.log.Info("the disk is full; removed an unused module to free space", "url", module.redactedURL())
			f, err = m.attempt(ctx, module, known)
		}
		if err == nil || attempt >= m.config.Retries || !isTransient(err) {
			return f, err
		}
		m.log.Info("fetching a module failed; retrying", "url", module.redactedURL(), "error", err)
		if !backoff.Sleep(ctx, retry.Next()) {
			return nil, fmt.Errorf("%w; last error: %w", context.Cause(ctx), err)
		}
	}
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// attempt fetches a module once, with a timeout.
func (m *Modules) attempt(ctx context.Context, module Module, known *entry) (*fetched, error) {
	timeout := module.Timeout
	if timeout <= 0 {
		timeout = m.config.Timeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("timeout after %v", timeout))
	defer cancel()
	f, err := m.fetchByScheme(ctx, module, known)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return f, err
}

func (m *Modules) fetchByScheme(ctx context.Context, module Module, known *entry) (*fetched, error) {
	u, err := url.Parse(module.URL)
	if err != nil {
		return nil, unreadableError{errors.New("the URL is invalid")}
	}
	switch u.Scheme {
	case "http", "https":
		return m.fromServer(ctx, module, known)
	case "oci":
		return m.fromRegistry(ctx, strings.TrimPrefix(module.URL, "oci://"), module, known)
	}
	return nil, unreadableError{fmt.Errorf("the URL has the scheme %q; use http, https or oci", u.Scheme)}
}

// isTransient reports whether a retry of the failed attempt may succeed.
func isTransient(err error) bool {
	var status statusError
	var unverified *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, fetchguard.ErrBlocked), errors.Is(err, errTooLarge), errors.Is(err, errMismatch), errors.Is(err, errUnchanged):
		return false
	case errors.As(err, &unverified), errors.As(err, &unknown):
		return false
	case errors.As(err, &status):
		return status.code >= 500 || status.code == http.StatusTooManyRequests || status.code == http.StatusRequestTimeout
	}
	var unreadable unreadableError
	return !errors.As(err, &unreadable)
}

// fromServer fetches a module over HTTP or HTTPS.
func (m *Modules) fromServer(ctx context.Context, module Module, known *entry) (*fetched, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, module.URL, nil)
	if err != nil {
		return nil, err
	}
	if known != nil && known.ETag != "" {
		request.Header.Set("If-None-Match", known.ETag)
	}
	// The transport refuses a redirect from https to http.
	client := &http.Client{Transport: m.config.transport(request.URL.Scheme == "https", request.URL.Host)}
	response, err := client.Do(request)
	if err != nil {
		return nil, redactError(err)
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotModified && known != nil:
		return nil, errUnchanged
	case response.StatusCode != http.StatusOK:
		return nil, statusError{response.StatusCode}
	case response.ContentLength > m.config.MaxSize:
		return nil, fmt.Errorf("the module has %d bytes: %w", response.ContentLength, errTooLarge)
	}
	f, err := m.spool(response.Body, "")
	if err != nil {
		return nil, err
	}
	f.etag = response.Header.Get("ETag")
	return f, nil
}

// redactError removes two things from an error of a fetch: the URL, which may contain a password, and text of the
// server.
func redactError(err error) error {
	if plain, ok := errors.AsType[plaintextError](err); ok {
		return plain
	}
	if errors.Is(err, errTooLarge) {
		return errTooLarge
	}
	return fetchguard.HideAnswer(err, "the response is not valid")
}

// unreadableError is a permanent error: a URL, reference or secret is invalid, or the received content is not a module.
type unreadableError struct{ error }

func (e unreadableError) Unwrap() error { return e.error }

// spool unpacks a module into a temporary file without buffering it in memory. name is the file name of the module in an
// archive. spool reads the input to its end.
func (m *Modules) spool(from io.Reader, name string) (_ *fetched, err error) {
	file, err := m.store.temporary()
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := file.Close(); err == nil && closed != nil {
			err = closed
		}
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	served := &hashingReader{from: &limitedReader{from: from, left: m.config.MaxSize + 1<<20}, sum: sha256.New()}
	sum := sha256.New()
	if err := unpack(io.MultiWriter(file, sum), served, name, m.config.MaxSize); err != nil {
		return nil, served.classifyError(err)
	}
	if _, err := io.Copy(io.Discard, served); err != nil {
		return nil, redactError(err)
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	return &fetched{file: file.Name(), size: size, sum: hexOf(sum), digest: hexOf(served.sum)}, nil
}

// hashingReader computes the checksum of the data that is read, and records a read error.
type hashingReader struct {
	from   io.Reader
	sum    hash.Hash
	failed error
}

func (s *hashingReader) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	s.sum.Write(p[:n])
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// classifyError returns the error of unpacking. An error in the content, unlike a read error, becomes an
// unreadableError.
func (s *hashingReader) classifyError(err error) error {
	switch {
	case errors.As(err, new(*os.PathError)):
		return err
	case s.failed != nil:
		return redactError(err)
	}
	return unreadableError{err}
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }
