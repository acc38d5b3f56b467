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

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

const (
	attemptTime  = 5 * time.Second
	mostAttempts = 5
	// mostAnswer is how long an answer of a server may be.
	mostAnswer = 64 << 10
)

// upstream asks servers over HTTP. It takes no proxy from the environment and follows no redirect, which would carry a
// token to where nobody meant it to go.
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

// dialTLS reads the roots anew for each connection.
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

// reply is what a server answered.
type reply struct {
	status int
	body   []byte
}

// ask sends the request that build makes until a server answers it, at most five times: a server's error (5xx) and a
// connection that fails may pass, every other answer is one.
func (u *upstream) ask(ctx context.Context, build func(context.Context) (*http.Request, error)) (reply, error) {
	backoff := dial.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
	for attempt := 1; ; attempt++ {
		request, err := build(ctx)
		if err != nil {
			return reply{}, err
		}
		r, err := u.once(request)
		if err == nil && r.status < http.StatusInternalServerError {
			return r, nil
		}
		if err == nil {
			err = fmt.Errorf("%s answered with status %d", place(request.URL), r.status)
		}
		if errors.Is(err, errTooLong) || attempt == mostAttempts || !wait(ctx, backoff.Next()) {
			return reply{}, fmt.Errorf("%w (after %d attempts)", err, attempt)
		}
	}
}

var errTooLong = errors.New("the answer is too long")

func (u *upstream) once(request *http.Request) (reply, error) {
	response, err := u.client.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) { // whose text has the whole address
			err = wrapped.Err
		}
		return reply{}, fmt.Errorf("%s: %w", place(request.URL), err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, mostAnswer+1))
	if err != nil {
		return reply{}, fmt.Errorf("%s: reading the answer: %w", place(request.URL), err)
	}
	if len(body) > mostAnswer {
		return reply{}, fmt.Errorf("%s: %w", place(request.URL), errTooLong)
	}
	return reply{status: response.StatusCode, body: body}, nil
}

// wait says whether the time passed before the context ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// place is an address without what follows the path.
func place(u *url.URL) string { return u.Scheme + "://" + u.Host + u.Path }

// checkURL holds an exchange server's address to what tokens may be sent to.
func checkURL(what, raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%s: not a URL: write it as https://host/path", what)
	}
	if u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("%s %s: write it without user and fragment", what, place(u))
	}
	ip, err := netip.ParseAddr(u.Hostname())
	local := u.Hostname() == "localhost" || (err == nil && ip.IsLoopback())
	if u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return nil, fmt.Errorf("%s %s: tokens are sent over https only, or over http on loopback", what, place(u))
	}
	return u, nil
}
