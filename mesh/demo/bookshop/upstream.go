package bookshop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// propagatedHeaders are the headers that a service copies from a request to its upstream requests: the user, the requested
// fault, and the trace context. The application must do this, because the sidecar cannot correlate inbound and outbound
// requests.
var propagatedHeaders = []string{
	"X-User", "X-Trouble", "X-Strict", "X-Request-Id",
	"Traceparent", "Tracestate", "B3", "X-B3-Traceid", "X-B3-Spanid", "X-B3-Parentspanid", "X-B3-Sampled", "X-B3-Flags",
}

// maxAnswer is the maximum size of an upstream's response, in bytes.
const maxAnswer = 1 << 20

// callTimeout limits upstream calls for which the mesh configures no timeout.
const callTimeout = 15 * time.Second

func newClient(proxy *url.URL) *http.Client {
	transport := &http.Transport{
		MaxIdleConns: 256, MaxIdleConnsPerHost: 128, IdleConnTimeout: 30 * time.Second,
		DisableCompression: true,
	}
	if proxy != nil {
		transport.Proxy = http.ProxyURL(proxy)
	}
	return &http.Client{Transport: transport, Timeout: callTimeout}
}

// callUpstream calls an upstream by its plain name. The returned Call contains the response or the error.
func (s *Server) callUpstream(r *http.Request, name, path string) Call {
	c := Call{Name: name, URL: "http://" + name + ":9080" + path}
	start := time.Now()
	status, answer, err := s.fetch(r.Context(), c.URL, r.Header)
	c.Status, c.Answer = status, answer
	c.Millis = float64(time.Since(start).Microseconds()) / 1000
	if err != nil {
		c.Error = err.Error()
	}
	s.counters.add(fmt.Sprintf("upstream %s %d", name, status))
	return c
}

func (s *Server) fetch(ctx context.Context, address string, from http.Header) (int, *Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, nil, err
	}
	for _, name := range propagatedHeaders {
		if values := from.Values(name); len(values) > 0 {
			request.Header[name] = values
		}
	}
	response, err := s.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return response.StatusCode, nil, fmt.Errorf("reading the response: %w", err)
	}
	return decode(response.StatusCode, body)
}

// decode parses the body of a response as an Answer. If the body is not an Answer, decode returns an error with the
// body's text, for example a sidecar's "upstream request timeout". If it is an Answer and the status is not 200, decode
// returns both the Answer and an error. An upstream sends 502 if its own call failed and the request has the header
// x-strict.
func decode(status int, body []byte) (int, *Answer, error) {
	var answer Answer
	if err := json.Unmarshal(body, &answer); err != nil || answer.Service == "" {
		text := strings.TrimSpace(string(body[:min(len(body), 200)]))
		if text == "" {
			text = http.StatusText(status)
		}
		return status, nil, fmt.Errorf("%s", text)
	}
	if status != http.StatusOK {
		return status, &answer, fmt.Errorf("%s", http.StatusText(status))
	}
	return status, &answer, nil
}
