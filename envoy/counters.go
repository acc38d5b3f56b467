package envoy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Counters returns the counters whose names match the RE2 expression filter. It uses a new connection and no goroutine,
// so that it wakes few threads: idle agents call it periodically.
func (a *Admin) Counters(ctx context.Context, filter string) (map[string]uint64, error) {
	body, err := a.getOnce(ctx, "/stats?"+url.Values{"type": {"Counters"}, "filter": {filter}}.Encode())
	if err != nil {
		return nil, fmt.Errorf("reading counters from Envoy's admin interface (%s): %w", a.addr, err)
	}
	counters := map[string]uint64{}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		end := max(strings.LastIndex(line, ": "), 0)
		if n, err := strconv.ParseUint(strings.TrimPrefix(line[end:], ": "), 10, 64); err == nil {
			counters[line[:end]] = n
		}
	}
	return counters, nil
}

// getOnce sends a GET request on a new connection, and returns the body of the response.
func (a *Admin) getOnce(ctx context.Context, target string) (string, error) {
	deadline := time.Now().Add(adminTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	conn, err := net.DialTimeout(a.network, a.target, time.Until(deadline))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(deadline)
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: envoy-admin\r\nConnection: close\r\n\r\n", target); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDump))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &StatusError{Path: target, Status: resp.StatusCode, Body: firstLine(string(body))}
	}
	return string(body), err
}
