package consul

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

const (
	// blockingTime is the wait parameter of blocking queries. Consul adds up to a sixteenth.
	blockingTime = 2 * time.Minute
	// requestTimeout limits a request, in addition to blockingTime for a blocking query.
	requestTimeout = 30 * time.Second
	// defaultMaxResponse limits the size of a response, after decompression.
	defaultMaxResponse = 64 << 20
	// maxReason limits the text of a failed request that the source reports.
	maxReason = 200
)

// Headers of Consul's HTTP API.
const (
	indexHeader    = "X-Consul-Index"
	tokenHeader    = "X-Consul-Token"
	filteredHeader = "X-Consul-Results-Filtered-By-Acls"
)

// client sends requests to a Consul agent. It is safe for concurrent use.
type client struct {
	server    server
	tokenFile string
	tls       dial.TLS
	http      *http.Client
	// maxResponse limits the size of a response.
	maxResponse int
	// multiplexes is set if the server uses HTTP/2, so that many blocking queries share one connection.
	multiplexes atomic.Bool
}

func newClient(cfg Config) (*client, error) {
	server, err := parseAddress(cfg.Address)
	if err != nil {
		return nil, err
	}
	c := &client{server: server, tokenFile: cfg.TokenFile, tls: cfg.TLS, maxResponse: cfg.maxResponse}
	c.tls.Adjust = func(t *tls.Config) error {
		t.NextProtos = []string{"h2", "http/1.1"}
		return nil
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: c.dial, DialTLSContext: c.dialTLS, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: maxWatches + maxReads, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
			HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		},
		// A redirect could send the token to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

func (c *client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if c.server.socket != "" {
		network, address = "unix", c.server.socket
	}
	return dialer.DialContext(ctx, network, address)
}

// dialTLS reads the certificates again for each connection.
func (c *client) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	config, err := c.tls.Config(c.server.base.Hostname())
	if err != nil {
		return nil, err
	}
	raw, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return conn, nil
}

// query is one request for a resource that supports blocking queries.
type query struct {
	path       string // escaped
	datacenter string // empty for the datacenter of the agent
	// index is the index of the last response. If it is not 0, Consul responds when the resource has changed, or after
	// blockingTime.
	index uint64
}

// result describes a response.
type result struct {
	// index is the index for the next query; 0 if the next query must not block.
	index uint64
	// filtered: Consul left out objects that the token may not read.
	filtered bool
}

// get sends a query and decodes the response into out.
func (c *client) get(ctx context.Context, q query, out any) (result, error) {
	timeout := requestTimeout
	if q.index > 0 {
		timeout += blockingTime + blockingTime/16
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := c.newRequest(ctx, q)
	if err != nil {
		return result{}, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return result{}, describe(err, timeout)
	}
	defer response.Body.Close()
	c.multiplexes.Store(response.ProtoMajor == 2)
	if response.StatusCode != http.StatusOK {
		return result{}, readFailure(response)
	}
	body := &limitedReader{from: response.Body, left: c.maxResponse}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		if errors.Is(err, errTooLarge) {
			return result{}, fmt.Errorf("%w %d bytes", err, c.maxResponse)
		}
		return result{}, fmt.Errorf("the response to %s is not the JSON of Consul's API: %w", q.path, describe(err, timeout))
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 1024)) // reads the final newline, so that the connection can be reused
	next, err := nextIndex(q.index, response.Header)
	return result{index: next, filtered: response.Header.Get(filteredHeader) == "true"}, err
}

func (c *client) newRequest(ctx context.Context, q query) (*http.Request, error) {
	at := c.server.base
	var err error
	if at.Path, err = url.PathUnescape(q.path); err != nil {
		return nil, err
	}
	at.RawPath = q.path
	values := url.Values{}
	if q.datacenter != "" {
		values.Set("dc", q.datacenter)
	}
	if q.index > 0 {
		values.Set("index", strconv.FormatUint(q.index, 10))
		values.Set("wait", blockingTime.String())
	}
	at.RawQuery = values.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	if c.tokenFile != "" {
		token, err := dial.ReadToken(c.tokenFile)
		if err != nil {
			return nil, err
		}
		request.Header.Set(tokenHeader, token)
	}
	return request, nil
}

// nextIndex returns the index for the query after one with the index previous. As Consul's documentation requires, a
// decreased index causes a query that does not block, and an index is at least 1.
func nextIndex(previous uint64, header http.Header) (uint64, error) {
	index, err := strconv.ParseUint(header.Get(indexHeader), 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("the response has no valid header %s: the server at this address is not Consul", indexHeader)
	case index < previous:
		return 0, nil
	}
	return max(index, 1), nil
}

// readFailure returns the error of a response that has not the status 200.
func readFailure(response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	reason := strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "")), " ")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + " …"
	}
	err := fmt.Errorf("Consul responds %d: %s", response.StatusCode, reason)
	switch response.StatusCode {
	case http.StatusForbidden, http.StatusUnauthorized:
		return fmt.Errorf("%w (check the token in --consul-token-file)", err)
	case http.StatusTooManyRequests:
		return fmt.Errorf("%w (use an https:// address, or increase limits.http_max_conns_per_client of the Consul agent)", err)
	}
	return err
}

// describe returns the cause of an error of package http, without the URL.
func describe(err error, timeout time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no response within %s", timeout)
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

var errTooLarge = errors.New("the response has more than")

// limitedReader reads at most left bytes. It then returns errTooLarge.
type limitedReader struct {
	from io.Reader
	left int
}

func (l *limitedReader) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLarge
	}
	n, err := l.from.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}
