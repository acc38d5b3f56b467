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

// proxyPort is where a workload's sidecar takes its application's requests.
const proxyPort = "15080"

// client makes requests from one place: from outside, or as a workload does, through that workload's sidecar, which
// catches them, or is told to be their proxy.
type client struct {
	from string
	http *http.Client
}

// headers are what a request carries beside the usual.
type headers map[string]string

// reply is how a request ended: Status is 0 when no answer came.
type reply struct {
	Status int
	Body   string
	Answer *bookshop.Answer // nil when the body is not one
	Took   time.Duration
	// Again counts how often Go's client silently sent the request once more, because a connection broke.
	Again int
}

// outside is a client that is no part of the mesh.
func (t *Target) outside() *client {
	return t.client("outside", nil, (&net.Dialer{}).DialContext)
}

// as is a client that calls as the workload's application would.
func (t *Target) as(ctx context.Context, workload string) (*client, error) {
	i, err := t.instance(ctx, workload)
	if err != nil {
		return nil, err
	}
	var proxy *url.URL
	if !t.Mesh.Status(ctx).Captured {
		proxy = &url.URL{Scheme: "http", Host: net.JoinHostPort(i.ProxyAddress, proxyPort)}
	}
	return t.client(workload, proxy, t.dialAs(workload)), nil
}

// beside is a client next to the workload's application, which it reaches past the sidecar.
func (t *Target) beside(workload string) *client {
	return t.client("beside "+workload, nil, t.dialAs(workload))
}

type dial func(ctx context.Context, network, address string) (net.Conn, error)

func (t *Target) dialAs(workload string) dial {
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

// closeClients ends all connections, for the end of the mesh.
func (t *Target) closeClients() {
	for _, c := range t.clients {
		c.http.CloseIdleConnections()
	}
}

// instance is the status of one workload's only instance.
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
		return reply{Took: time.Since(start)}, fmt.Errorf("%s asked %s: %w", c.from, address, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	r := reply{Status: response.StatusCode, Body: string(body), Took: time.Since(start), Again: max(0, int(conns.Load())-1)}
	if err != nil {
		return r, fmt.Errorf("%s asked %s, and the answer broke off: %w", c.from, address, err)
	}
	var answer bookshop.Answer
	if json.Unmarshal(body, &answer) == nil && answer.Service != "" {
		r.Answer = &answer
	}
	return r, nil
}

// want is get for a request that has to be answered with the status, and by the shop when that is 200.
func (c *client) want(ctx context.Context, status int, address string, h headers) (reply, error) {
	r, err := c.get(ctx, address, h)
	if err != nil {
		return r, err
	}
	if r.Status != status || (status == http.StatusOK && r.Answer == nil) {
		return r, fmt.Errorf("%s asked %s%s: %s, where %d was due", c.from, address, h, r, status)
	}
	return r, nil
}

// many sends n requests, a few at a time, and gives the replies. Requests that got no answer have status 0.
func (c *client) many(ctx context.Context, n, parallel int, address string, h headers) []reply {
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

// tally counts replies by a property.
func tally[K comparable](replies []reply, of func(reply) K) map[K]int {
	counts := map[K]int{}
	for _, r := range replies {
		counts[of(r)]++
	}
	return counts
}

// failures are the replies that do not have the status.
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

// String says in a few words what came: "503 (fault filter abort)".
func (r reply) String() string {
	text := strings.Join(strings.Fields(r.Body), " ")
	if len(text) > 120 {
		text = text[:120] + "…"
	}
	if r.Status == 0 {
		return "no answer (" + text + ")"
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
