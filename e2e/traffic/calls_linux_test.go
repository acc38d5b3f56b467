package traffic

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const callTimeout = 20 * time.Second

// callPause is how long each caller pauses between its calls.
const callPause = 2 * time.Millisecond

// caller makes one kind of request; n counts them.
type caller struct {
	name string
	call func(n int) error
	made atomic.Int64
}

// callers are all kinds: HTTP on connections that stay and on new ones, TCP, and both by way of the gateway.
func (w *testMesh) callers() []*caller {
	kept, fresh, outside := w.client("client", true), w.client("client", false), w.client("", true)
	host := func(n int) string { return w.edits.Host(n % 2) }
	return []*caller{
		{name: "HTTP", call: func(n int) error { return w.get(kept, "http://"+host(n), "", n) }},
		{name: "HTTP on new connections", call: func(n int) error { return w.get(fresh, "http://"+host(n), "", n) }},
		{name: "TCP", call: func(n int) error { return w.sendLine("client", fmt.Sprintf("%s:%d", host(n), portTCP)) }},
		{name: "HTTP at the gateway", call: func(n int) error { return w.get(outside, "http://"+w.edgeAddress(8000), "kept.example.com", n) }},
		{name: "TCP at the gateway", call: func(int) error { return w.sendLine("", w.edgeAddress(8001)) }},
	}
}

func (w *testMesh) client(from string, stay bool) *http.Client {
	return &http.Client{Timeout: callTimeout, Transport: &http.Transport{
		DisableKeepAlives: !stay,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return w.Dial(ctx, from, network, address)
		},
	}}
}

func (w *testMesh) get(client *http.Client, url, host string, n int) error {
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("%s/p%d", url, n%7), nil)
	if err != nil {
		return err
	}
	request.Host = host
	request.Header.Set("X-User", fmt.Sprintf("u%d", n%5))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "s")) {
		err = fmt.Errorf("status %d, %q", response.StatusCode, body)
	}
	return err
}

func (w *testMesh) sendLine(from, address string) error {
	ctx, cancel := context.WithTimeout(w.ctx, callTimeout)
	defer cancel()
	conn, err := w.Dial(ctx, from, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(callTimeout))
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.HasSuffix(line, " hello\n") {
		err = fmt.Errorf("the answer is %q", line)
	}
	return err
}

// traffic is requests that do not stop until done.
type traffic struct {
	w        *testMesh
	activity atomic.Value // what is changed, for the message
	callers  []*caller
	failed   chan string
	stop     chan struct{}
	running  sync.WaitGroup
}

// startTraffic begins traffic when all kinds of requests are answered.
func (w *testMesh) startTraffic() *traffic {
	w.t.Helper()
	f := &traffic{w: w, callers: w.callers(), failed: make(chan string, 1), stop: make(chan struct{})}
	f.activity.Store("nothing")
	for _, c := range f.callers {
		for n := range 4 {
			testenv.Eventually(w.t, c.name, func() error { return c.call(n) })
		}
		f.running.Go(func() { f.keepCalling(c) })
	}
	w.t.Cleanup(f.end)
	return f
}

// keepCalling makes one call after another, with pauses: callers that use all processors would leave none for the
// proxies to apply changes, and the test would measure the machine.
func (f *traffic) keepCalling(c *caller) {
	for n := 0; ; n++ {
		select {
		case <-f.stop:
			return
		default:
		}
		began := time.Now()
		if err := c.call(n); err != nil {
			took := time.Since(began).Round(time.Millisecond)
			select {
			case f.failed <- fmt.Sprintf("%s: %v, from %s for %v, after %d answers; what was done: %s\n%s",
				c.name, err, began.Format(time.StampMilli), took, c.made.Load(), f.activity.Load(), f.w.collectStats()):
			default:
			}
			return
		}
		c.made.Add(1)
		time.Sleep(callPause)
	}
}

// statsFilter selects the statistics on why connections ended, and on how long certificates are valid.
const statsFilter = `(connect_(fail|timeout)|none_healthy|no_healthy|no_route|no_filter_chain_match|ssl\.(fail|connection_error)\w*|fail_verify_\w+|` +
	`connection_error|downstream_cx_(overflow|overload)\w*|downstream_pre_cx_timeout|rbac\.\w*denied|listener\..*expiration_unix_time_seconds|rx_reset|flow_timeout|idle_timeout)$`

// collectStats is what the proxies counted.
func (w *testMesh) collectStats() string {
	counted := make([]string, len(w.Instances()))
	var wg sync.WaitGroup
	for n, i := range w.Instances() {
		wg.Go(func() {
			var text strings.Builder
			if err := w.writeStats(i.Name, &text); err != nil {
				fmt.Fprintf(&text, "%s: %v\n", i.Name, err)
			}
			counted[n] = text.String()
		})
	}
	wg.Wait()
	return strings.Join(counted, "")
}

// writeStats writes those statistics of one proxy that are not zero.
func (w *testMesh) writeStats(instance string, to io.Writer) error {
	client := http.Client{Timeout: callTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return w.DialAdmin(ctx, instance) },
	}}
	response, err := client.Get("http://admin/stats?usedonly&filter=" + url.QueryEscape(statsFilter))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if !strings.HasSuffix(lines.Text(), ": 0") {
			fmt.Fprintf(to, "%s: %s\n", instance, lines.Text())
		}
	}
	return lines.Err()
}

// check ends the test when a request failed.
func (f *traffic) check() {
	f.w.t.Helper()
	select {
	case failure := <-f.failed:
		f.w.t.Fatal(failure)
	default:
	}
}

func (f *traffic) end() {
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
	f.running.Wait()
}

// minRequests is how many requests of each kind prove something.
const minRequests = 20

// done ends the traffic when there was enough of it, and proves that none of it failed.
func (f *traffic) done() {
	f.w.t.Helper()
	testenv.Eventually(f.w.t, "there is enough traffic", func() error {
		f.check()
		for _, c := range f.callers {
			if c.made.Load() < minRequests {
				return fmt.Errorf("%s: only %d requests were made", c.name, c.made.Load())
			}
		}
		return nil
	})
	f.end()
	f.check()
	var made []string
	for _, c := range f.callers {
		made = append(made, fmt.Sprintf("%s %d", c.name, c.made.Load()))
	}
	f.w.t.Logf("requests, of which none failed: %s", strings.Join(made, ", "))
}
