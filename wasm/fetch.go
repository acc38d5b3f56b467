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
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

var (
	// errMismatch is of modules that are not what the control plane asked for.
	errMismatch = errors.New("it has another checksum than the one asked for")
	// errUnchanged says that the module at hand is still what its source has.
	errUnchanged = errors.New("unchanged")
)

// statusError is an answer other than 200.
type statusError struct{ code int }

func (e statusError) Error() string {
	return fmt.Sprintf("the server answered %d %s", e.code, http.StatusText(e.code))
}

// fetched is a module in a file that is not yet at its place.
type fetched struct {
	file string
	size int64
	// sum is of the module; digest is that of the image or file that it came in; etag is HTTP's.
	sum, digest, etag string
}

// fetch gets a module, with retries where another attempt may help. Of a module that is known it may say errUnchanged.
func (m *Modules) fetch(ctx context.Context, module Module, known *entry) (*fetched, error) {
	wait := m.config.Backoff
	for attempt := 0; ; attempt++ {
		f, err := m.attempt(ctx, module, known)
		for isFull(err) && m.store.dropUnused(known) {
			m.log.Info("a module was removed for another, since the disk is full", "url", module.shown())
			f, err = m.attempt(ctx, module, known)
		}
		if err == nil || attempt >= m.config.Retries || !passing(err) {
			return f, err
		}
		m.log.Info("fetching a module failed and is tried again", "url", module.shown(), "error", err)
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, and then: %w", err, context.Cause(ctx))
		}
		wait = min(2*wait, 10*time.Second)
	}
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

func (m *Modules) attempt(ctx context.Context, module Module, known *entry) (*fetched, error) {
	timeout := module.Timeout
	if timeout <= 0 {
		timeout = m.config.Timeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer in %v", timeout))
	defer cancel()
	f, err := m.from(ctx, module, known)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return f, err
}

func (m *Modules) from(ctx context.Context, module Module, known *entry) (*fetched, error) {
	u, err := url.Parse(module.URL)
	if err != nil {
		return nil, unreadableError{errors.New("its URL cannot be read")}
	}
	switch u.Scheme {
	case "http", "https":
		return m.fromServer(ctx, module, known)
	case "oci":
		return m.fromRegistry(ctx, strings.TrimPrefix(module.URL, "oci://"), module, known)
	}
	return nil, unreadableError{fmt.Errorf("its URL has the scheme %q; modules come from http, https or oci", u.Scheme)}
}

// passing says whether a failure may be gone the next time.
func passing(err error) bool {
	var status statusError
	var unverified *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, errBlocked), errors.Is(err, errTooLarge), errors.Is(err, errMismatch), errors.Is(err, errUnchanged):
		return false
	case errors.As(err, &unverified), errors.As(err, &unknown):
		return false
	case errors.As(err, &status):
		return status.code >= 500 || status.code == http.StatusTooManyRequests || status.code == http.StatusRequestTimeout
	}
	var unreadable unreadableError
	return !errors.As(err, &unreadable)
}

func (m *Modules) fromServer(ctx context.Context, module Module, known *entry) (*fetched, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, module.URL, nil)
	if err != nil {
		return nil, err
	}
	if known != nil && known.ETag != "" {
		request.Header.Set("If-None-Match", known.ETag)
	}
	// What was asked for with TLS does not go on without.
	client := &http.Client{Transport: m.config.transport(request.URL.Scheme == "https")}
	response, err := client.Do(request)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotModified && known != nil:
		return nil, errUnchanged
	case response.StatusCode != http.StatusOK:
		return nil, statusError{response.StatusCode}
	case response.ContentLength > m.config.MaxSize:
		return nil, fmt.Errorf("it has %d bytes: %w", response.ContentLength, errTooLarge)
	}
	f, err := m.spool(response.Body, "")
	if err != nil {
		return nil, err
	}
	f.etag = response.Header.Get("ETag")
	return f, nil
}

// withoutURL leaves out the URL, which may hold a password.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// unreadableError is of what was served in full but is no module.
type unreadableError struct{ error }

func (e unreadableError) Unwrap() error { return e.error }

// spool unpacks a module into a file, without holding it in memory, and reads the rest of what was served.
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
	served := &source{from: &capped{from: from, left: m.config.MaxSize + 1<<20}, sum: sha256.New()}
	sum := sha256.New()
	if err := unpack(io.MultiWriter(file, sum), served, name, m.config.MaxSize); err != nil {
		return nil, served.blame(err)
	}
	if _, err := io.Copy(io.Discard, served); err != nil {
		return nil, err
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	return &fetched{file: file.Name(), size: size, sum: hexOf(sum), digest: hexOf(served.sum)}, nil
}

// source sums up what is read, and remembers whether reading failed.
type source struct {
	from   io.Reader
	sum    hash.Hash
	failed error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	s.sum.Write(p[:n])
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// blame tells failures of the source, which may pass, from those of its content.
func (s *source) blame(err error) error {
	if s.failed != nil || errors.As(err, new(*os.PathError)) {
		return err
	}
	return unreadableError{err}
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }
