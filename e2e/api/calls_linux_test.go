package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

const requestTimeout = 10 * time.Second

// reply is the answer to a request of HTTP.
type reply struct {
	Status int
	Header http.Header
	Body   string
	// Echo is the server's description of the request; zero when none of the servers answered.
	Echo
}

// request is a request to be made: by default a GET of / with nothing special.
type request struct {
	Method  string
	URL     string
	Host    string // if not the URL's
	Headers map[string]string
	Body    string
	// H2 sends the request over HTTP/2.
	H2 bool
}

// get requests a URL from the network of an instance ("" for a client outside the mesh). Headers are name/value pairs.
func (w *testMesh) get(from, url string, headers ...string) (reply, error) {
	r := request{URL: url, Headers: map[string]string{}}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Headers[headers[i]] = headers[i+1]
	}
	return w.send(from, r)
}

func (w *testMesh) send(from string, r request) (reply, error) {
	req, err := http.NewRequestWithContext(w.ctx, r.Method, r.URL, strings.NewReader(r.Body))
	if err != nil {
		return reply{}, err
	}
	for k, v := range r.Headers {
		req.Header.Set(k, v)
	}
	if r.Host != "" {
		req.Host = r.Host
	}
	c := w.client(from)
	if r.H2 {
		c = w.client(from, "h2c")
	}
	defer c.CloseIdleConnections()
	res, err := c.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return reply{}, err
	}
	got := reply{Status: res.StatusCode, Header: res.Header, Body: string(body)}
	_ = json.Unmarshal(body, &got.Echo) // other answers than a server's are no echo
	return got, nil
}

// expectStatus requests a URL and fails if the response has another status.
func (w *testMesh) expectStatus(status int, from, url string, headers ...string) (reply, error) {
	got, err := w.get(from, url, headers...)
	if err == nil && got.Status != status {
		err = fmt.Errorf("%s from %q: %d %s, want %d", url, from, got.Status, got.Body, status)
	}
	return got, err
}

// countByServer sends n requests and counts the responses by server. A response without a server counts under its
// status.
func (w *testMesh) countByServer(n int, from, url string, headers ...string) (map[string]int, error) {
	seen := map[string]int{}
	for range n {
		got, err := w.get(from, url, headers...)
		switch {
		case err != nil:
			return seen, err
		case got.Status != http.StatusOK || got.Server == "":
			seen[strconv.Itoa(got.Status)]++
		default:
			seen[got.Server]++
		}
	}
	return seen, nil
}

// count returns the number of requests with this X-Test that reached a server.
func (w *testMesh) count(server, key string) (int, error) {
	got, err := w.get(server, fmt.Sprintf("http://127.0.0.1:%d/count/%s", portHTTP, key))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(got.Body)
}

// sendLine sends a line over TCP and returns the n lines that the server sends back.
func (w *testMesh) sendLine(from, address, line string, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(w.ctx, requestTimeout)
	defer cancel()
	conn, err := w.Dial(ctx, from, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return exchangeLines(conn, line, n)
}

// exchangeLines sends a line, and reads n.
func exchangeLines(conn net.Conn, line string, n int) ([]string, error) {
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	if line != "" {
		if _, err := fmt.Fprintln(conn, line); err != nil {
			return nil, err
		}
	}
	lines := bufio.NewScanner(conn)
	var received []string
	for len(received) < n && lines.Scan() {
		received = append(received, lines.Text())
	}
	if len(received) < n && lines.Err() == nil {
		return received, fmt.Errorf("the connection ended after %q", received)
	}
	return received, lines.Err()
}

// getTLS requests / from an address over HTTPS with the name as SNI, and verifies the certificate's name.
func (w *testMesh) getTLS(from, address, sni string) (reply, error) {
	pool := w.ca.Pool()
	c := &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialTLSContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, err := w.Dial(ctx, from, network, address)
			if err != nil {
				return nil, err
			}
			secured := tls.Client(conn, &tls.Config{ServerName: sni, RootCAs: pool})
			return secured, secured.HandshakeContext(ctx)
		},
	}}
	res, err := c.Get("https://" + sni + "/")
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	got := reply{Status: res.StatusCode, Header: res.Header}
	return got, json.NewDecoder(res.Body).Decode(&got.Echo)
}

// checkGRPC makes a gRPC health call and returns the name of the server that answered.
func (w *testMesh) checkGRPC(from, address string, headers ...string) (server string, err error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return w.Dial(ctx, from, "tcp", to) }))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(w.ctx, metadata.Pairs(headers...)), requestTimeout)
	defer cancel()
	var got metadata.MD
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&got)); err != nil {
		return "", err
	}
	return strings.Join(got.Get("x-server"), ","), nil
}

// stats returns the numeric statistics of a workload's Envoy that begin with a prefix, by the rest of their name.
func (w *testMesh) stats(at, prefix string) (map[string]int, error) {
	got, err := w.expectStatus(http.StatusOK, at, "http://127.0.0.1:15000/stats?filter="+url.QueryEscape("^"+regexp.QuoteMeta(prefix)))
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for line := range strings.Lines(got.Body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.Atoi(value); err == nil { // there are texts and histograms too
			out[strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(name, prefix), ";"), ".")] = n
		}
	}
	return out, nil
}

// countCalls returns the number of requests and connections of a workload's Envoy to a cluster.
func (w *testMesh) countCalls(at, cluster string) (requests, connections int, err error) {
	stats, err := w.stats(at, "cluster."+cluster)
	return stats["upstream_rq_total"], stats["upstream_cx_total"], err
}

// eventually repeats a request until it succeeds or -row-timeout expires. Checks use it for steps that need time.
func eventually(send func() (reply, error)) (reply, error) {
	for end := time.Now().Add(*rowTimeout); ; time.Sleep(100 * time.Millisecond) {
		if got, err := send(); err == nil || time.Now().After(end) {
			return got, err
		}
	}
}
