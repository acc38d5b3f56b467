//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// load describes requests, the number of connections, and the duration for which they are sent.
type load struct {
	// address is the address to connect to.
	address string
	// target is the target in the request line: a path, or an absolute URL for an HTTP proxy.
	target      string
	host        string
	connections int
	duration    time.Duration
}

// result contains the measurements of a load.
type result struct {
	requests int
	failed   int
	elapsed  time.Duration
	p50, p99 time.Duration
}

func (r result) perSecond() float64 { return float64(r.requests) / r.elapsed.Seconds() }

// run sends requests on all connections until the duration has passed. Each connection has one request at a time. All
// requests consist of the same bytes, so that their generation needs little CPU time.
func (l load) run(ctx context.Context) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, l.duration)
	defer cancel()
	request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\n\r\n", l.target, l.host)

	latencies := make([][]time.Duration, l.connections)
	failures := make([]int, l.connections)
	errs := make([]error, l.connections)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range l.connections {
		wg.Go(func() { latencies[i], failures[i], errs[i] = sendRequests(ctx, l.address, request) })
	}
	wg.Wait()
	r := result{elapsed: time.Since(start)}
	var all []time.Duration
	for i := range l.connections {
		all = append(all, latencies[i]...)
		r.failed += failures[i]
	}
	if err := errors.Join(errs...); err != nil {
		return r, err
	}
	if len(all) == 0 {
		return r, fmt.Errorf("no request to %s received a response", l.address)
	}
	slices.Sort(all)
	r.requests = len(all)
	r.p50, r.p99 = all[len(all)/2], all[len(all)*99/100]
	return r, nil
}

// sendRequests sends requests on one connection until the context ends. It returns the latency of each response, and the
// number of responses with another status than 200.
func sendRequests(ctx context.Context, address string, request []byte) (latencies []time.Duration, failed int, err error) {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		if ctx.Err() != nil {
			err = nil // the load has ended before this connection was open
		}
		return nil, 0, err
	}
	defer conn.Close()
	reader := bufio.NewReaderSize(conn, 8<<10)
	for ctx.Err() == nil {
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return latencies, failed, err
		}
		sent := time.Now()
		if _, err := conn.Write(request); err != nil {
			return latencies, failed, fmt.Errorf("sending a request to %s: %w", address, err)
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return latencies, failed, fmt.Errorf("reading the response of %s: %w", address, err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil {
			return latencies, failed, fmt.Errorf("reading the response of %s: %w", address, err)
		}
		latencies = append(latencies, time.Since(sent))
		if response.StatusCode != http.StatusOK {
			failed++
		}
	}
	return latencies, failed, nil
}
