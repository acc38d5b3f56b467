package lifecycle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

// requestTimeout limits one request of the load. A slower request counts as lost.
const requestTimeout = 20 * time.Second

// load is a steady load, and what became of it.
type load struct {
	stop    context.CancelFunc
	workers sync.WaitGroup

	mu     sync.Mutex
	served map[string]int
	lost   map[string][]string
}

// caller makes requests of one kind; each call is one request. close ends it.
type caller interface {
	call(ctx context.Context) error
	close()
}

// startLoad makes requests of every kind, from clients with and without a sidecar.
func startLoad(t testing.TB, client *pod, targets *endpoints) *load {
	t.Helper()
	proxy := client.proxy + ":15080"
	return startCallers([]callers{
		{"HTTP/1.1 kept alive", 2, func() caller { return newSidecarHTTP(proxy, "shop:8080/?wait=5ms", false) }},
		{"HTTP/1.1 new connections", 1, func() caller { return newSidecarHTTP(proxy, "shop:8080/?wait=5ms", true) }},
		{"HTTP/1.1 slow", 4, func() caller { return newSidecarHTTP(proxy, "shop:8080/?wait=400ms", false) }},
		{"HTTP/2", 2, func() caller { return newSidecarHTTP2(proxy, "shop:8081", "/?wait=20ms") }},
		{"gRPC", 2, func() caller { return newGRPC(t, proxy, "shop:8082", false) }},
		{"gRPC streams", 4, func() caller { return newGRPC(t, proxy, "shop:8082", true) }},
		{"TCP", 3, func() caller { return &tcpCaller{address: client.upstream()} }},
		{"HTTP/1.1 without a sidecar", 2, func() caller { return newDirect(targets) }},
	})
}

// callers make requests of one kind.
type callers struct {
	name    string
	workers int
	make    func() caller
}

func startCallers(kinds []callers) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop, served: map[string]int{}, lost: map[string][]string{}}
	for _, k := range kinds {
		for range k.workers {
			l.workers.Go(func() { l.work(ctx, k.name, k.make()) })
		}
	}
	return l
}

func (l *load) work(ctx context.Context, kind string, c caller) {
	defer c.close()
	for ctx.Err() == nil {
		request, cancel := context.WithTimeout(context.Background(), requestTimeout)
		err := c.call(request)
		cancel()
		l.mu.Lock()
		if err == nil {
			l.served[kind]++
		} else {
			l.lost[kind] = append(l.lost[kind], time.Now().Format("15:04:05.000 ")+err.Error())
		}
		l.mu.Unlock()
		time.Sleep(time.Duration(5+rand.IntN(10)) * time.Millisecond)
	}
}

// end stops the load once every request has its response. It returns the numbers of served and lost requests by kind.
func (l *load) end() (served map[string]int, lost map[string][]string) {
	l.stop()
	l.workers.Wait()
	return l.served, l.lost
}

// total is the number of requests that were lost, and a text with some of each kind.
func total(lost map[string][]string) (n int, text string) {
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(lost)) {
		n += len(lost[kind])
		fmt.Fprintf(&b, "\n  %s: %d, as %q", kind, len(lost[kind]), lost[kind][:min(3, len(lost[kind]))])
	}
	return n, b.String()
}

func get(ctx context.Context, client *http.Client, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader("a body")) // not repeated by anyone
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d: %s", resp.StatusCode, body)
	}
	return err
}

// sidecarHTTP is an application that has its sidecar as HTTP proxy.
type sidecarHTTP struct {
	client *http.Client
	target string
}

func newSidecarHTTP(proxy, target string, newConnections bool) caller {
	return &sidecarHTTP{target: "http://" + target, client: &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxy}), DisableKeepAlives: newConnections,
	}}}
}

func (c *sidecarHTTP) call(ctx context.Context) error { return get(ctx, c.client, c.target) }
func (c *sidecarHTTP) close()                         { c.client.CloseIdleConnections() }

// newSidecarHTTP2 speaks HTTP/2 with prior knowledge to its sidecar.
func newSidecarHTTP2(proxy, authority, path string) caller {
	transport := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, proxy)
		},
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	return &sidecarHTTP{target: "http://" + authority + path, client: &http.Client{Transport: transport}}
}

// grpcCaller makes unary calls, or receives streams of one second.
type grpcCaller struct {
	conn   *grpc.ClientConn
	stream bool
}

func newGRPC(t testing.TB, proxy, authority string, stream bool) caller {
	conn, err := grpc.NewClient("passthrough:///"+proxy, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(authority), grpc.WithDisableRetry())
	if err != nil {
		t.Error(err)
	}
	return &grpcCaller{conn: conn, stream: stream}
}

func (c *grpcCaller) close() { _ = c.conn.Close() }

func (c *grpcCaller) call(ctx context.Context) error {
	client := testgrpc.NewTestServiceClient(c.conn)
	if !c.stream {
		_, err := client.EmptyCall(ctx, &testgrpc.Empty{})
		return err
	}
	const messages = 10
	request := &testgrpc.StreamingOutputCallRequest{}
	for range messages {
		request.ResponseParameters = append(request.ResponseParameters, &testgrpc.ResponseParameters{Size: 8, IntervalUs: 100_000})
	}
	stream, err := client.StreamingOutputCall(ctx, request)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		switch _, err := stream.Recv(); {
		case errors.Is(err, io.EOF) && n == messages:
			return nil
		case err != nil:
			return fmt.Errorf("after %d of %d messages: %w", n, messages, err)
		}
	}
}

// newTCPCaller is a caller with a connection for each call.
type newTCPCaller string

func (c newTCPCaller) call(ctx context.Context) error {
	one := &tcpCaller{address: string(c)}
	defer one.close()
	return one.call(ctx)
}

func (newTCPCaller) close() {}

// tcpCaller uses one connection until its server closes it.
type tcpCaller struct {
	address string
	conn    net.Conn
	in      *bufio.Reader
	n       int
}

func (c *tcpCaller) call(ctx context.Context) error {
	if c.conn == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
		if err != nil {
			return err
		}
		c.conn, c.in = conn, bufio.NewReader(conn)
	}
	c.n++
	deadline, _ := ctx.Deadline()
	_ = c.conn.SetDeadline(deadline)
	line := fmt.Sprintf("line %d", c.n)
	_, err := fmt.Fprintln(c.conn, line)
	if err != nil {
		return c.closeOnError(err)
	}
	switch answer, err := c.in.ReadString('\n'); {
	case err != nil:
		return c.closeOnError(err)
	case answer == line+goodbye:
		c.close()
	case answer != line+"\n":
		return c.closeOnError(fmt.Errorf("the answer to %q was %q", line, answer))
	}
	return nil
}

func (c *tcpCaller) closeOnError(err error) error { c.close(); return err }

func (c *tcpCaller) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// endpoints is what a load balancer without a sidecar knows of the pods.
type endpoints struct {
	mu   sync.Mutex
	addr []string
}

func (e *endpoints) set(pods []*pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.addr = nil
	for _, p := range pods {
		e.addr = append(e.addr, p.proxy+":8080")
	}
}

func (e *endpoints) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.addr)
}

// direct holds connections to all pods, as a load balancer does, until they are removed from its list.
type direct struct {
	targets *endpoints
	clients map[string]*sidecarHTTP
}

func newDirect(targets *endpoints) caller {
	return &direct{targets: targets, clients: map[string]*sidecarHTTP{}}
}

func (d *direct) call(ctx context.Context) error {
	list := d.targets.list()
	for address, c := range d.clients {
		if !slices.Contains(list, address) {
			c.close()
			delete(d.clients, address)
		}
	}
	target := list[rand.IntN(len(list))]
	if d.clients[target] == nil {
		d.clients[target] = &sidecarHTTP{target: "http://" + target + "/?wait=5ms", client: &http.Client{Transport: &http.Transport{}}}
	}
	return d.clients[target].call(ctx)
}

func (d *direct) close() {
	for _, c := range d.clients {
		c.close()
	}
}
