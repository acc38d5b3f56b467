package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// maxBody limits how many bytes of a response body are read and reported. The kubelet has the same limit.
	maxBody = 10 << 10
	// maxHeader limits a response's header, in bytes.
	maxHeader = 64 << 10
	// maxRedirects is the maximum number of redirects that are followed.
	maxRedirects = 10
	// defaultUserAgent is the User-Agent of a probe whose caller does not specify one.
	defaultUserAgent = "istio-probe/1.0"
)

// Request contains headers of the caller of an HTTP probe, for example of the kubelet.
type Request struct {
	// Header is sent to the application, except for hop-by-hop headers.
	Header http.Header
	// Host, if set, replaces the application's address in the Host header.
	Host string
}

// Response is an application's response to an HTTP probe.
type Response struct {
	// Code is the status code, from 200 to 599. It is 200 for an application's status from 300 to 399, for example a
	// redirect to another host.
	Code int
	// Body contains the first 10 KiB of the body as received. It may be compressed if the caller accepts compression.
	// It is empty for a status from 300 to 399.
	Body []byte
}

// IsSuccess reports whether the kubelet would treat the response as a success.
func (a Response) IsSuccess() bool { return a.Code >= 200 && a.Code < 400 }

func newTransport(c Config) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(c.HTTP2)
	t := &http.Transport{
		DialContext: dial,
		// Like the kubelet, the prober does not verify the certificate. The probe sends no secret.
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true},
		TLSHandshakeTimeout:    10 * time.Second,
		Protocols:              &protocols,
		DisableKeepAlives:      !c.KeepAlive,
		DisableCompression:     true, // do not decompress bodies, which could exhaust memory
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        4 << 10,
		// By default, HTTP/2 would buffer megabytes of an unread body.
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream:     16 << 10,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   15 * time.Second,
		},
	}
	if !c.KeepAlive {
		t.RegisterProtocol("http", oneShotTransport{})
	}
	return t
}

// sameHost returns a CheckRedirect function that follows up to ten redirects on the same host, as the kubelet does. A
// redirect to another host is itself the response of the probe.
func sameHost(refuse func(*url.URL) error) func(*http.Request, []*http.Request) error {
	return func(next *http.Request, via []*http.Request) error {
		if next.URL.Hostname() != via[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(via) >= maxRedirects {
			return fmt.Errorf("stopped after %d redirects", maxRedirects)
		}
		if refuse != nil {
			return refuse(next.URL)
		}
		return nil
	}
}

// HTTP runs the probe of s.HTTP. It returns an error if the application does not send a valid response.
func (p *Prober) HTTP(ctx context.Context, s Spec, r Request) (Response, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	resp, err := p.client.Do(s.HTTP.request(ctx, r))
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // url.Error repeats the address
		}
		return Response{}, s.wrapError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := readResponse(resp)
	if err != nil {
		return Response{}, s.wrapError(ctx, err)
	}
	return answer, nil
}

func readResponse(resp *http.Response) (Response, error) {
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400:
		return Response{Code: http.StatusOK}, nil
	case code < 200 || code > 599:
		return Response{}, fmt.Errorf("status %d is not a valid HTTP status", code)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return Response{}, fmt.Errorf("reading the response body: %w", err)
	}
	return Response{Code: resp.StatusCode, Body: body}, nil
}

// url returns the URL of the probe, without the fragment of the configured path. If the path is not valid in a URL, url
// uses it as the unescaped path.
func (h *HTTP) url() *url.URL {
	path, _, _ := strings.Cut(h.Path, "#")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		u = &url.URL{Path: path}
	}
	u.Scheme, u.Host = "http", hostPort(h.Host, h.Port)
	if h.TLS {
		u.Scheme = "https"
	}
	return u
}

func (h *HTTP) request(ctx context.Context, r Request) *http.Request {
	req := (&http.Request{Method: http.MethodGet, URL: h.url(), Header: http.Header{}, Host: r.Host}).WithContext(ctx)
	for _, from := range []http.Header{h.Header, r.Header} {
		for name, values := range from {
			req.Header[http.CanonicalHeaderKey(name)] = append([]string(nil), values...)
		}
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	if r.Header == nil && req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", defaultUserAgent)
	} else if _, named := req.Header["User-Agent"]; !named {
		req.Header["User-Agent"] = []string{""} // without this entry, net/http sends its own User-Agent
	}
	dropHopByHop(req.Header)
	return req
}

// dropHopByHop removes the headers that concern only the caller's connection (RFC 9110, section 7.6.1).
func dropHopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Proxy-Connection", "Te",
		"Trailer", "Transfer-Encoding", "Upgrade"} {
		h.Del(name)
	}
}
