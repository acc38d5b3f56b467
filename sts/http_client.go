package sts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

const (
	attemptTime = 5 * time.Second
	maxAttempts = 5
	// maxAnswer limits the body of a server's response, in bytes.
	maxAnswer = 64 << 10
)

// upstream is an HTTP client of an exchange or metadata server. It ignores the proxy environment variables and does not
// follow redirects, because both could send a token to another server.
type upstream struct {
	client *http.Client
}

func newUpstream(to dial.TLS) *upstream {
	transport := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: attemptTime}).DialContext,
		DialTLSContext:         dialTLS(to),
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
	return &upstream{client: &http.Client{
		Transport:     transport,
		Timeout:       attemptTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// dialTLS returns a function that opens a TLS connection. The function reads the root certificates again for each
// connection.
func dialTLS(to dial.TLS) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		config, err := to.Config(host)
		if err != nil {
			return nil, err
		}
		config.NextProtos = []string{"http/1.1"}
		dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: attemptTime}, Config: config}
		return dialer.DialContext(ctx, network, address)
	}
}

func (u *upstream) Close() error {
	u.client.CloseIdleConnections()
	return nil
}

// reply is a server's response.
type reply struct {
	status int
	body   []byte
}

// send sends the request that build returns. It retries after server errors (5xx) and failed connections, up to
// maxAttempts attempts in total.
func (u *upstream) send(ctx context.Context, build func(context.Context) (*http.Request, error)) (reply, error) {
	retry := backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
	for attempt := 1; ; attempt++ {
		request, err := build(ctx)
		if err != nil {
			return reply{}, err
		}
		r, err := u.sendOnce(request)
		if err == nil && r.status < http.StatusInternalServerError {
			return r, nil
		}
		if err == nil {
			err = fmt.Errorf("%s responded with status %d", withoutQuery(request.URL), r.status)
		}
		if errors.Is(err, errTooLong) || attempt == maxAttempts || !backoff.Sleep(ctx, retry.Next()) {
			return reply{}, fmt.Errorf("%w (after %d attempts)", err, attempt)
		}
	}
}

var errTooLong = errors.New("the response is too long")

func (u *upstream) sendOnce(request *http.Request) (reply, error) {
	response, err := u.client.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) { // its text contains the whole URL
			err = wrapped.Err
		}
		return reply{}, fmt.Errorf("%s: %w", withoutQuery(request.URL), err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return reply{}, fmt.Errorf("%s: reading the response: %w", withoutQuery(request.URL), err)
	}
	if len(body) > maxAnswer {
		return reply{}, fmt.Errorf("%s: %w", withoutQuery(request.URL), errTooLong)
	}
	return reply{status: response.StatusCode, body: body}, nil
}

// withoutQuery returns u without its query and user, which may contain secrets.
func withoutQuery(u *url.URL) string { return u.Scheme + "://" + u.Host + u.Path }

// checkURL parses the URL of an exchange server. It returns an error if the URL is invalid, or if a token sent to it
// would not be encrypted. what names the server in errors.
func checkURL(what, raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%s: invalid URL: write it as https://host/path", what)
	}
	if u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("%s %s: the URL must not contain a user or a fragment", what, withoutQuery(u))
	}
	ip, err := netip.ParseAddr(u.Hostname())
	local := u.Hostname() == "localhost" || (err == nil && ip.IsLoopback())
	if u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return nil, fmt.Errorf("%s %s: the URL must be https, or http on loopback", what, withoutQuery(u))
	}
	return u, nil
}
