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
	// Echo is what the server says of the request; zero when none of the servers answered.
	Echo
}

// request is a request to be made: by default a GET of / with nothing special.
type request struct {
	Method  string
	URL     string
	Host    string // if not the URL's
	Headers map[string]string
	Body    string
	// H2 has it made by HTTP/2.
	H2 bool
}

// get asks for a URL from the place of an instance ("" for an outsider), with headers as pairs.
func (w *world) get(from, url string, headers ...string) (reply, error) {
	r := request{URL: url, Headers: map[string]string{}}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Headers[headers[i]] = headers[i+1]
	}
	return w.ask(from, r)
}

func (w *world) ask(from string, r request) (reply, error) {
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

// expect asks for a URL, and says when the status is another.
func (w *world) expect(status int, from, url string, headers ...string) (reply, error) {
	got, err := w.get(from, url, headers...)
	if err == nil && got.Status != status {
		err = fmt.Errorf("%s from %q: %d %s, want %d", url, from, got.Status, got.Body, status)
	}
	return got, err
}

// servers asks n times, and counts the answers by server; an answer without a server counts as its status.
func (w *world) servers(n int, from, url string, headers ...string) (map[string]int, error) {
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

// count is how many requests with this X-Test reached a server.
func (w *world) count(server, key string) (int, error) {
	got, err := w.get(server, fmt.Sprintf("http://127.0.0.1:%d/count/%s", portHTTP, key))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(got.Body)
}

// say sends a line over TCP, and gives the lines that come back: n of them.
func (w *world) say(from, address, line string, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(w.ctx, requestTimeout)
	defer cancel()
	conn, err := w.Dial(ctx, from, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return talk(conn, line, n)
}

// talk sends a line, and reads n.
func talk(conn net.Conn, line string, n int) ([]string, error) {
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	if line != "" {
		if _, err := fmt.Fprintln(conn, line); err != nil {
			return nil, err
		}
	}
	lines := bufio.NewScanner(conn)
	var heard []string
	for len(heard) < n && lines.Scan() {
		heard = append(heard, lines.Text())
	}
	if len(heard) < n && lines.Err() == nil {
		return heard, fmt.Errorf("the connection ended after %q", heard)
	}
	return heard, lines.Err()
}

// getTLS asks for / at an address by HTTPS with the name as SNI, and checks the certificate's name, too.
func (w *world) getTLS(from, address, sni string) (reply, error) {
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

// checkGRPC makes a call of gRPC, and says which server answered.
func (w *world) checkGRPC(from, address string, headers ...string) (server string, err error) {
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

// stats are the numbers of a workload's Envoy that begin with a prefix, by what follows it.
func (w *world) stats(at, prefix string) (map[string]int, error) {
	got, err := w.expect(http.StatusOK, at, "http://127.0.0.1:15000/stats?filter="+url.QueryEscape("^"+regexp.QuoteMeta(prefix)))
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

// callsOf are how many requests a workload made to a cluster, in how many connections.
func (w *world) callsOf(at, cluster string) (requests, connections int, err error) {
	stats, err := w.stats(at, "cluster."+cluster)
	return stats["upstream_rq_total"], stats["upstream_cx_total"], err
}

// eventually asks again for as long as rows are patient: for steps of a check, each of which takes its time.
func eventually(ask func() (reply, error)) (reply, error) {
	for end := time.Now().Add(*patience); ; time.Sleep(100 * time.Millisecond) {
		if got, err := ask(); err == nil || time.Now().After(end) {
			return got, err
		}
	}
}
