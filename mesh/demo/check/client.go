package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo/bookshop"
)

// httpProxyPort is the port of a sidecar's HTTP proxy.
const httpProxyPort = "15080"

// client sends requests, either from outside of the mesh, or as a workload through its sidecar. As a workload, it uses the
// redirection of the workload's network namespace, or the sidecar's HTTP proxy.
type client struct {
	from string
	http *http.Client
}

// headers contains additional request headers.
type headers map[string]string

// reply is the result of a request. If no response was received, Status is 0.
type reply struct {
	Status int
	Body   string
	Answer *bookshop.Answer // nil if the body is not a response of the shop
	Took   time.Duration
	// number of times that Go's HTTP client sent the request again, because its connection broke
	Resent int
}

// outsideClient returns a client outside of the mesh.
func (t *Target) outsideClient() *client {
	return t.client("outside", nil, (&net.Dialer{}).DialContext)
}

// clientOf returns a client that sends requests as the workload's application does.
func (t *Target) clientOf(ctx context.Context, workload string) (*client, error) {
	i, err := t.instance(ctx, workload)
	if err != nil {
		return nil, err
	}
	var proxy *url.URL
	if !t.Mesh.Status(ctx).Captured {
		proxy = &url.URL{Scheme: "http", Host: net.JoinHostPort(i.ProxyAddress, httpProxyPort)}
	}
	return t.client(workload, proxy, t.dialFrom(workload)), nil
}

// directClient returns a client that is in the workload's network but bypasses the sidecar.
func (t *Target) directClient(workload string) *client {
	return t.client("a client without a sidecar in the network of "+workload, nil, t.dialFrom(workload))
}

type dial func(ctx context.Context, network, address string) (net.Conn, error)

func (t *Target) dialFrom(workload string) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return t.Mesh.Dial(ctx, workload, network, address)
	}
}

func (t *Target) client(from string, proxy *url.URL, dial dial) *client {
	if c, ok := t.clients[from]; ok {
		return c
	}
	c := &client{from: from, http: &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(proxy), DialContext: dial,
		MaxIdleConnsPerHost: 64, IdleConnTimeout: 20 * time.Second, DisableCompression: true,
	}}}
	t.clients[from] = c
	return c
}

// closeClients closes the idle connections of all clients, before the mesh is stopped.
func (t *Target) closeClients() {
	for _, c := range t.clients {
		c.http.CloseIdleConnections()
	}
}

// instance returns the status of the instance called name.
func (t *Target) instance(ctx context.Context, name string) (mesh.InstanceStatus, error) {
	for _, i := range t.Mesh.Status(ctx).Instances {
		if i.Name == name {
			return i, nil
		}
	}
	return mesh.InstanceStatus{}, fmt.Errorf("the mesh has no workload %s", name)
}

func (c *client) get(ctx context.Context, address string, h headers) (reply, error) {
	var conns atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { conns.Add(1) }})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return reply{}, err
	}
	request.Header.Set("Accept", "application/json")
	for name, value := range h {
		request.Header.Set(name, value)
	}
	start := time.Now()
	response, err := c.http.Do(request)
	if err != nil {
		return reply{Took: time.Since(start)}, fmt.Errorf("%s called %s: %w", c.from, address, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	r := reply{Status: response.StatusCode, Body: string(body), Took: time.Since(start), Resent: max(0, int(conns.Load())-1)}
	if err != nil {
		return r, fmt.Errorf("%s called %s: the response was cut off: %w", c.from, address, err)
	}
	var answer bookshop.Answer
	if json.Unmarshal(body, &answer) == nil && answer.Service != "" {
		r.Answer = &answer
	}
	return r, nil
}

// expect sends a GET request. It returns an error unless the response has the expected status and, if that is 200,
// contains an Answer of the shop.
func (c *client) expect(ctx context.Context, status int, address string, h headers) (reply, error) {
	r, err := c.get(ctx, address, h)
	if err != nil {
		return r, err
	}
	if r.Status != status || (status == http.StatusOK && r.Answer == nil) {
		return r, fmt.Errorf("%s called %s%s: received %s, want status %d", c.from, address, h, r, status)
	}
	return r, nil
}

// getMany sends n requests and returns the replies. At most parallel requests are active at the same time. If there is
// no response to a request, its reply has status 0.
func (c *client) getMany(ctx context.Context, n, parallel int, address string, h headers) []reply {
	replies := make([]reply, n)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				r, err := c.get(ctx, address, h)
				if err != nil {
					r = reply{Body: err.Error(), Took: r.Took}
				}
				replies[i] = r
			}
		})
	}
	workers.Wait()
	return replies
}

// tally counts the replies by the key that keyOf returns.
func tally[K comparable](replies []reply, keyOf func(reply) K) map[K]int {
	counts := map[K]int{}
	for _, r := range replies {
		counts[keyOf(r)]++
	}
	return counts
}

// failures returns the replies whose status is not the expected one.
func failures(replies []reply, status int) []reply {
	var bad []reply
	for _, r := range replies {
		if r.Status != status {
			bad = append(bad, r)
		}
	}
	return bad
}

func version(r reply) string {
	if r.Answer == nil {
		return fmt.Sprint(r.Status)
	}
	return r.Answer.Version
}

// String returns a short description, such as "503 (fault filter abort)".
func (r reply) String() string {
	text := strings.Join(strings.Fields(r.Body), " ")
	if len(text) > 120 {
		text = text[:120] + "…"
	}
	if r.Status == 0 {
		return "no response (" + text + ")"
	}
	return fmt.Sprintf("%d (%s)", r.Status, text)
}

func (h headers) String() string {
	var s strings.Builder
	for name, value := range h {
		fmt.Fprintf(&s, " with %s: %s", name, value)
	}
	return s.String()
}
