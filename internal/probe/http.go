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
	// longestBody is how much of an answer is read and told, as by a kubelet.
	longestBody = 10 << 10
	// longestHeader bounds an answer's header.
	longestHeader = 64 << 10
	// mostRedirects are followed.
	mostRedirects = 10
	// agentOfProbes is what a probe calls itself where nobody else asks through it.
	agentOfProbes = "istio-probe/1.0"
)

// Request is what the caller of an HTTP probe adds to it.
type Request struct {
	// Header is passed on, except for what concerns only the caller's own connection.
	Header http.Header
	// Host, if set, is asked for in place of the application's address.
	Host string
}

// Answer is what an application answered.
type Answer struct {
	// Code is the application's own, from 200 to 599; a redirect to another host is 200.
	Code int
	// Body is its beginning, at most 10 KiB, as it came: compressed if the caller asked for that.
	Body []byte
}

// Well says whether a kubelet would take the answer for a success.
func (a Answer) Well() bool { return a.Code >= 200 && a.Code < 400 }

func newTransport(c Config) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(c.HTTP2)
	t := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // as a kubelet; nothing secret is sent
		TLSHandshakeTimeout:    10 * time.Second,
		Protocols:              &protocols,
		DisableKeepAlives:      !c.KeepAlive,
		DisableCompression:     true, // what nobody unpacks cannot swell
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: longestHeader,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        4 << 10,
		// Left to itself, HTTP/2 would take in megabytes that nobody reads.
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream:     16 << 10,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   15 * time.Second,
		},
	}
	if !c.KeepAlive {
		t.RegisterProtocol("http", once{})
	}
	return t
}

// sameHost follows redirects as a kubelet does: on the same host up to ten times, and never to another one, where a
// redirect is an answer like any other.
func sameHost(refuse func(*url.URL) error) func(*http.Request, []*http.Request) error {
	return func(next *http.Request, via []*http.Request) error {
		if next.URL.Hostname() != via[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(via) >= mostRedirects {
			return fmt.Errorf("stopped after %d redirects", mostRedirects)
		}
		if refuse != nil {
			return refuse(next.URL)
		}
		return nil
	}
}

// HTTP makes a probe that has s.HTTP. The error says why there is no answer.
func (p *Prober) HTTP(ctx context.Context, s Spec, r Request) (Answer, error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	resp, err := p.client.Do(s.HTTP.request(ctx, r))
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // which repeats the address
		}
		return Answer{}, s.failed(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := readAnswer(resp)
	if err != nil {
		return Answer{}, s.failed(ctx, err)
	}
	return answer, nil
}

func readAnswer(resp *http.Response) (Answer, error) {
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400:
		return Answer{Code: http.StatusOK}, nil
	case code < 200 || code > 599:
		return Answer{}, fmt.Errorf("the answer's status %d is none of HTTP", code)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestBody))
	if err != nil {
		return Answer{}, fmt.Errorf("reading the answer's body: %w", err)
	}
	return Answer{Code: resp.StatusCode, Body: body}, nil
}

// url is the address asked. A path that is not valid in a URL is asked for as it stands.
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
		req.Header.Set("User-Agent", agentOfProbes)
	} else if _, named := req.Header["User-Agent"]; !named {
		req.Header["User-Agent"] = []string{""} // net/http would put its own
	}
	dropHopByHop(req.Header)
	return req
}

// dropHopByHop removes what concerns the caller's connection and not the application's (RFC 9110, section 7.6.1).
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
