package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

const (
	// maxList limits the size of one page of a pod list, in bytes.
	maxList = 64 << 20
	// requestTimeout is the timeout of every request except a watch.
	requestTimeout = 30 * time.Second
	// pingEvery is the interval of HTTP/2 pings. They detect a broken connection while a watch sends no events.
	pingEvery, pingTimeout = 30 * time.Second, 15 * time.Second
)

// Client is a Kubernetes API client. Its methods may be called concurrently.
type Client struct {
	base      string
	token     string
	tokenFile string
	http      *http.Client
}

// New returns a client. It does not connect to the API server.
func New(c Config) (*Client, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, InsecureSkipVerify: c.Insecure}
	if len(c.CA) > 0 {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("the API server's CA certificate is not in PEM format")
		}
	}
	if len(c.Certificate) > 0 {
		pair, err := tls.X509KeyPair(c.Certificate, c.PrivateKey)
		if err != nil {
			return nil, fmt.Errorf("parsing the client certificate for the API server: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	base, err := url.Parse(c.Server)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("the API server's URL %q is invalid: use a URL such as https://10.0.0.1:443", c.Server)
	}
	return &Client{
		base:      strings.TrimSuffix(c.Server, "/"),
		token:     c.Token,
		tokenFile: c.TokenFile,
		http: &http.Client{
			Transport: &http.Transport{
				TLSClientConfig:       conf,
				ForceAttemptHTTP2:     true,
				HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingEvery, PingTimeout: pingTimeout},
				TLSHandshakeTimeout:   10 * time.Second,
				ResponseHeaderTimeout: requestTimeout,
				IdleConnTimeout:       90 * time.Second,
				MaxIdleConns:          2,
				Proxy:                 nil, // ignore HTTPS_PROXY: the API server is in the cluster's network
			},
			// A redirect would send the token to another server.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is an error response of the API server.
type StatusError struct {
	Code    int    // HTTP status
	Reason  string // reason in the Kubernetes Status object, such as "NotFound" or "Expired"
	Message string
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("the API server responded with %d %s", e.Code, e.Reason)
	if e.Message != "" {
		text += ": " + e.Message
	}
	switch e.Code {
	case http.StatusUnauthorized:
		text += " (the token has expired or is for another cluster: check that the node agent, which renews the kubeconfig, is running)"
	case http.StatusForbidden:
		text += " (the service account lacks this permission: compare its ClusterRole with the one in the manifest)"
	}
	return text
}

// IsNotFound reports whether err means that the object does not exist.
func IsNotFound(err error) bool { return hasCode(err, http.StatusNotFound) }

// IsConflict reports whether err means that a precondition failed because the object was changed or replaced.
func IsConflict(err error) bool { return hasCode(err, http.StatusConflict) }

func hasCode(err error, code int) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == code
}

// Pod reads one pod.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*agentapi.Pod, error) {
	pod := &agentapi.Pod{}
	if err := c.call(ctx, http.MethodGet, podPath(namespace, name), "", nil, pod, agentapi.MaxBody); err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
}

// call sends one request with a JSON body and decodes the response into result. body and result may be nil. limit is
// the maximum size of the response in bytes.
func (c *Client) call(ctx context.Context, method, path, contentType string, body, result any, limit int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, fmt.Errorf("the API server did not respond within %v", requestTimeout))
	defer cancel()
	response, err := c.do(ctx, method, path, contentType, body)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if result == nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return fmt.Errorf("reading the API server's response: %w", err)
	}
	if int64(len(text)) > limit {
		return fmt.Errorf("the API server's response is larger than %d bytes", limit)
	}
	if err := json.Unmarshal(text, result); err != nil {
		return fmt.Errorf("decoding the API server's response: %w", err)
	}
	return nil
}

// do sends one request. It returns the response if the status is a success, and a *StatusError for any other status.
func (c *Client) do(ctx context.Context, method, path, contentType string, body any) (*http.Response, error) {
	request, err := c.request(ctx, method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("sending a request to the API server at %s: %w", c.base, err)
	}
	if response.StatusCode >= 200 && response.StatusCode < 300 {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	status := &StatusError{Code: response.StatusCode, Reason: http.StatusText(response.StatusCode)}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	var failure struct{ Reason, Message string }
	if json.Unmarshal(text, &failure) == nil && failure.Reason != "" {
		status.Reason, status.Message = failure.Reason, failure.Message
	}
	return nil, status
}

func (c *Client) request(ctx context.Context, method, path, contentType string, body any) (*http.Request, error) {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encoding a request to the API server: %w", err)
		}
		reader = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, reader)
	if err != nil {
		return nil, fmt.Errorf("creating a request to the API server: %w", err)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	request.Header.Set("Accept", "application/json")
	token, err := c.bearer()
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return request, nil
}

// bearer returns the token for a request, or "" if the client has none.
func (c *Client) bearer() (string, error) {
	if c.tokenFile == "" {
		return c.token, nil
	}
	text, err := readFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("reading the token for the API server: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
