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

// deadline is the timeout of all waits. It is generous because only failing tests wait this long.
const deadline = time.Minute

// meshState is a State: the content of each resource, by type and name. A cluster whose content begins with "eds" has
// an assignment. A route configuration whose content begins with "apart" uses VHDS.
type meshState map[string]map[string]string

// cds, eds, lds, rds and nds are short names of types for tables.
const (
	cds = ClusterType
	eds = EndpointType
	lds = ListenerType
	rds = RouteType
	nds = NameTableType
)

// independentTypes are the types whose resources do not depend on another subscription.
var independentTypes = slices.DeleteFunc(slices.Clone(Order), func(t string) bool { return t == VirtualHostType })

func (w meshState) withResource(typeURL, name, content string) meshState {
	next := meshState{}
	for t, resources := range w {
		next[t] = maps.Clone(resources)
	}
	if next[typeURL] == nil {
		next[typeURL] = map[string]string{}
	}
	next[typeURL][name] = content
	return next
}

func (w meshState) withoutResource(typeURL, name string) meshState {
	next := w.withResource(typeURL, name, "")
	delete(next[typeURL], name)
	return next
}

func (w meshState) resource(typeURL, name string) *Resource {
	content := w[typeURL][name]
	r := &Resource{Name: name, Version: content, Body: &anypb.Any{TypeUrl: typeURL, Value: []byte(content)}}
	if typeURL == cds && strings.HasPrefix(content, "eds") {
		r.Endpoints = name
	}
	r.UsesVHDS = typeURL == rds && strings.HasPrefix(content, "apart")
	return r
}

// testChange is a Change: the types or resources that differ.
type testChange []string

func (c testChange) Merge(next Change) Change { return append(slices.Clone(c), next.(testChange)...) }

// pushScope parses the elements of the change. An element is a type, or a type and a resource name, separated by a
// space.
func (c testChange) pushScope() PushScope {
	scope := PushScope{}
	for _, one := range c {
		if typeURL, name, named := strings.Cut(one, " "); named {
			scope.Add(typeURL, name)
		} else {
			scope.AddAll(typeURL)
		}
	}
	return scope
}

// fakeSource is a Source, and the Proxy of every client.
type fakeSource struct {
	connectErr      error
	mu              sync.Mutex
	calls           int
	generateErr     func(typeURL string) error
	nodes           []string
	attributionTime time.Duration // duration of AttributeNACK
}

func (f *fakeSource) Hooks() Hooks { return Hooks{AttributeNACK: f.attributeNACK} }

func (f *fakeSource) attributeNACK(State, string, []string, string, time.Time) []SuspectDocument {
	f.mu.Lock()
	takes := f.attributionTime
	f.mu.Unlock()
	time.Sleep(takes)
	return nil
}

func (f *fakeSource) Connect(_ context.Context, node *corev3.Node, _ Peer) (Proxy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes = append(f.nodes, node.GetId())
	return f, f.connectErr
}

func (f *fakeSource) generateCalls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fakeSource) ComputePushScope(_ State, change Change) PushScope {
	return change.(testChange).pushScope()
}

func (f *fakeSource) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	f.mu.Lock()
	f.calls++
	broken := f.generateErr
	f.mu.Unlock()
	if broken != nil {
		if err := broken(typeURL); err != nil {
			return nil, err
		}
	}
	w := state.(meshState)
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

// testServer is a Server behind an in-process gRPC server.
type testServer struct {
	*Server
	t      testing.TB
	source *fakeSource
	conn   *grpc.ClientConn
}

func newTestServer(t testing.TB, cfg Config) *testServer {
	t.Helper()
	var source *fakeSource
	switch s := cfg.Source.(type) {
	case *fakeSource:
		source = s
	case *onDemandSource:
		source = &s.fakeSource
	case *vhdsDisablingSource:
		source = &s.fakeSource
	default:
		source = &fakeSource{}
		cfg.Source = source
	}
	if cfg.Settle == 0 {
		cfg.Settle = 30 * time.Millisecond
	}
	if cfg.Await == 0 {
		cfg.Await = 10 * time.Millisecond // many clients in these tests send no ACKs
	}
	server, conn := serveInProcess(t, cfg)
	return &testServer{Server: server, t: t, source: source, conn: conn}
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

func (r *testServer) push(w meshState, types ...string) { r.Push(w, testChange(types)) }

// awaitStatus waits until exactly one client is connected and ok accepts its status.
func (r *testServer) awaitStatus(what string, ok func(ClientStatus) bool) ClientStatus {
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

// typeStatus returns the status of one type.
func typeStatus(c ClientStatus, typeURL string) TypeStatus {
	for _, t := range c.Types {
		if t.TypeURL == typeURL {
			return t
		}
	}
	return TypeStatus{}
}

// deltaClient is one manually driven delta stream.
type deltaClient struct {
	t      testing.TB
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	cancel context.CancelFunc
	got    chan *discoveryv3.DeltaDiscoveryResponse
	err    error // the error with which the stream ended, valid once got is closed
	first  bool
	node   string
}

func (r *testServer) newDeltaClient() *deltaClient {
	return r.newDeltaClientAs("sidecar~1.1.1.1~a.default~default.svc.cluster.local")
}

func (r *testServer) newDeltaClientAs(node string) *deltaClient {
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
		c.t.Fatal(err) // after EOF, Recv returns the error that ended the stream
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
		c.t.Fatal("no response arrived")
	}
	return nil
}

// expect receives the next response, compares its description, and ACKs it.
func (c *deltaClient) expect(want string) *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	m := c.next()
	if got := describe(m); got != want {
		c.t.Fatalf("response is\n\t%s\nwant\n\t%s", got, want)
	}
	c.ack(m)
	return m
}

// receivePush returns the responses that are sent until the last push is complete.
func (c *deltaClient) receivePush(r *testServer) []*discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	r.awaitStatus("the push", func(s ClientStatus) bool { return !s.Pushing })
	probe := fmt.Sprintf("type.googleapis.com/test.Probe%d", time.Now().UnixNano())
	c.subscribe(probe) // the server does not serve this type, so it responds immediately with an empty response
	var all []*discoveryv3.DeltaDiscoveryResponse
	for {
		m := c.next()
		if m.GetTypeUrl() == probe {
			return all
		}
		all = append(all, m)
	}
}

// expectNothing checks that the server sends nothing else before it responds to another request.
func (c *deltaClient) expectNothing() {
	c.t.Helper()
	probe := fmt.Sprintf("type.googleapis.com/test.Probe%d", time.Now().UnixNano())
	c.subscribe(probe)
	if m := c.next(); m.GetTypeUrl() != probe {
		c.t.Fatalf("unexpected response: %s", describe(m))
	}
}

// awaitEnd waits for the end of the stream and returns its error.
func (c *deltaClient) awaitEnd() error {
	c.t.Helper()
	for {
		select {
		case _, ok := <-c.got:
			if !ok {
				return c.err
			}
		case <-time.After(deadline):
			c.t.Fatal("the stream did not end")
		}
	}
}

// describe describes a response in one line: "cds +a=1 +b=2 -c".
func describe(m *discoveryv3.DeltaDiscoveryResponse) string {
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
