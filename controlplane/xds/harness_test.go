package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is how long is waited for what has to come: only a broken promise takes it.
const deadline = time.Minute

// world is a State: by type and name, what a resource says. A cluster whose content begins with "eds" has an assignment, and
// a route configuration whose content begins with "apart" has its virtual hosts apart.
type world map[string]map[string]string

// cds, eds, lds, rds and nds shorten tables.
const (
	cds = ClusterType
	eds = EndpointType
	lds = ListenerType
	rds = RouteType
	nds = NameTableType
)

// wholeTypes are those whose resources stand by themselves.
var wholeTypes = slices.DeleteFunc(slices.Clone(Order), func(t string) bool { return t == VirtualHostType })

func (w world) with(typeURL, name, content string) world {
	next := world{}
	for t, resources := range w {
		next[t] = maps.Clone(resources)
	}
	if next[typeURL] == nil {
		next[typeURL] = map[string]string{}
	}
	next[typeURL][name] = content
	return next
}

func (w world) without(typeURL, name string) world {
	next := w.with(typeURL, name, "")
	delete(next[typeURL], name)
	return next
}

func (w world) resource(typeURL, name string) *Resource {
	content := w[typeURL][name]
	r := &Resource{Name: name, Version: content, Body: &anypb.Any{TypeUrl: typeURL, Value: []byte(content)}}
	if typeURL == cds && strings.HasPrefix(content, "eds") {
		r.Endpoints = name
	}
	r.HostsApart = typeURL == rds && strings.HasPrefix(content, "apart")
	return r
}

// changed is a Change: the types that differ.
type changed []string

func (c changed) Merge(next Change) Change { return append(slices.Clone(c), next.(changed)...) }

// touches: a type, or a type and a name of it after a blank.
func (c changed) touches() Touches {
	touches := Touches{}
	for _, one := range c {
		if typeURL, name, named := strings.Cut(one, " "); named {
			touches.Add(typeURL, name)
		} else {
			touches.AddAll(typeURL)
		}
	}
	return touches
}

// fake is a Source, and the Proxy of every client.
type fake struct {
	refuse error
	mu     sync.Mutex
	calls  int
	broken func(typeURL string) error
	nodes  []string
	blames time.Duration // how long it takes to find what a refused resource was made of
}

func (f *fake) Blame(State, string, []string, string, time.Time) []Blamed {
	f.mu.Lock()
	takes := f.blames
	f.mu.Unlock()
	time.Sleep(takes)
	return nil
}

func (f *fake) Connect(_ context.Context, node *corev3.Node, _ Peer) (Proxy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes = append(f.nodes, node.GetId())
	return f, f.refuse
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fake) Affected(_ State, change Change) Touches { return change.(changed).touches() }

func (f *fake) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	f.mu.Lock()
	f.calls++
	broken := f.broken
	f.mu.Unlock()
	if broken != nil {
		if err := broken(typeURL); err != nil {
			return nil, err
		}
	}
	w := state.(world)
	if wildcard {
		names = append(slices.Clone(names), slices.Collect(maps.Keys(w[typeURL]))...)
	}
	slices.Sort(names)
	var out []*Resource
	for _, name := range slices.Compact(names) {
		if _, ok := w[typeURL][name]; ok {
			out = append(out, w.resource(typeURL, name))
		}
	}
	return out, nil
}

// rig is a Server behind gRPC, in this process.
type rig struct {
	*Server
	t      testing.TB
	source *fake
	conn   *grpc.ClientConn
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	var source *fake
	switch s := cfg.Source.(type) {
	case *fake:
		source = s
	case *asking:
		source = &s.fake
	case *keeping:
		source = &s.fake
	default:
		source = &fake{}
		cfg.Source = source
	}
	if cfg.Settle == 0 {
		cfg.Settle = 30 * time.Millisecond
	}
	if cfg.Await == 0 {
		cfg.Await = 10 * time.Millisecond // many of these clients confirm nothing
	}
	server, conn := serveInProcess(t, cfg)
	return &rig{Server: server, t: t, source: source, conn: conn}
}

func serveInProcess(t testing.TB, cfg Config) (*Server, *grpc.ClientConn) {
	t.Helper()
	server, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 16)
	gs := grpc.NewServer(ServerOptions()...)
	server.RegisterTo(gs)
	served := make(chan struct{})
	go func() { defer close(served); _ = gs.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Stop()
		_ = conn.Close()
		gs.Stop()
		<-served
	})
	return server, conn
}

func (r *rig) push(w world, types ...string) { r.Push(w, changed(types)) }

// only waits until exactly one client is connected whose status is as wanted.
func (r *rig) only(what string, ok func(ClientStatus) bool) ClientStatus {
	r.t.Helper()
	var last []ClientStatus
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if last = r.Clients(); len(last) == 1 && ok(last[0]) {
			return last[0]
		}
	}
	r.t.Fatalf("waiting for %s: clients are %+v", what, last)
	return ClientStatus{}
}

// typeOf gives one type's status.
func typeOf(c ClientStatus, typeURL string) TypeStatus {
	for _, t := range c.Types {
		if t.TypeURL == typeURL {
			return t
		}
	}
	return TypeStatus{}
}

// deltaClient is one delta stream, driven by hand.
type deltaClient struct {
	t      testing.TB
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	cancel context.CancelFunc
	got    chan *discoveryv3.DeltaDiscoveryResponse
	err    error // valid once got is closed
	first  bool
	node   string
}

func (r *rig) delta() *deltaClient {
	return r.deltaAs("sidecar~1.1.1.1~a.default~default.svc.cluster.local")
}

func (r *rig) deltaAs(node string) *deltaClient {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(r.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	c := &deltaClient{t: r.t, stream: stream, cancel: cancel, got: make(chan *discoveryv3.DeltaDiscoveryResponse, 4096), first: true, node: node}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(c.got)
		for {
			m, err := stream.Recv()
			if err != nil {
				c.err = err
				return
			}
			c.got <- m
		}
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	return c
}

func (c *deltaClient) send(r *discoveryv3.DeltaDiscoveryRequest) {
	c.t.Helper()
	if c.first {
		r.Node = &corev3.Node{Id: c.node}
		c.first = false
	}
	if err := c.stream.Send(r); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatal(err) // EOF: the stream has ended, and Recv says why
	}
}

func (c *deltaClient) subscribe(typeURL string, names ...string) {
	c.t.Helper()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
}

func (c *deltaClient) unsubscribe(typeURL string, names ...string) {
	c.t.Helper()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesUnsubscribe: names})
}

func (c *deltaClient) ack(m *discoveryv3.DeltaDiscoveryResponse) {
	c.t.Helper()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()})
}

func (c *deltaClient) nack(m *discoveryv3.DeltaDiscoveryResponse, reason string) {
	c.t.Helper()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce(),
		ErrorDetail: &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: reason}})
}

func (c *deltaClient) next() *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	select {
	case m, ok := <-c.got:
		if !ok {
			c.t.Fatalf("the stream ended: %v", c.err)
		}
		return m
	case <-time.After(deadline):
		c.t.Fatal("no response came")
	}
	return nil
}

// expect takes the next response, compares it with how show tells it, and acknowledges it.
func (c *deltaClient) expect(want string) *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	m := c.next()
	if got := show(m); got != want {
		c.t.Fatalf("response is\n\t%s\nwant\n\t%s", got, want)
	}
	c.ack(m)
	return m
}

// batch gives all that is sent until the last push is done.
func (c *deltaClient) batch(r *rig) []*discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	r.only("the push", func(s ClientStatus) bool { return !s.Pushing })
	probe := fmt.Sprintf("type.googleapis.com/test.Probe%d", time.Now().UnixNano())
	c.subscribe(probe) // not served, so that the answer comes at once and is empty
	var all []*discoveryv3.DeltaDiscoveryResponse
	for {
		m := c.next()
		if m.GetTypeUrl() == probe {
			return all
		}
		all = append(all, m)
	}
}

// silence proves that nothing else was sent up to the handling of a request.
func (c *deltaClient) silence() {
	c.t.Helper()
	probe := fmt.Sprintf("type.googleapis.com/test.Probe%d", time.Now().UnixNano())
	c.subscribe(probe)
	if m := c.next(); m.GetTypeUrl() != probe {
		c.t.Fatalf("unexpected response: %s", show(m))
	}
}

// end waits for the end of the stream.
func (c *deltaClient) end() error {
	c.t.Helper()
	for {
		select {
		case _, ok := <-c.got:
			if !ok {
				return c.err
			}
		case <-time.After(deadline):
			c.t.Fatal("the stream goes on")
		}
	}
}

// show tells a response in one line: "cds +a=1 +b=2 -c".
func show(m *discoveryv3.DeltaDiscoveryResponse) string {
	words := []string{ShortType(m.GetTypeUrl())}
	for _, r := range m.GetResources() {
		word := "+" + r.GetName() + "=" + string(r.GetResource().GetValue())
		if len(r.GetAliases()) > 0 {
			word += "(" + strings.Join(r.GetAliases(), " ") + ")"
		}
		words = append(words, word)
	}
	for _, name := range m.GetRemovedResources() {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ")
}

func wantCode(t testing.TB, err error, code codes.Code) {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("stream ended with %v, want %v", err, code)
	}
}
