package xds

import (
	"context"
	"sort"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
)

// sotwClient is one manually driven state-of-the-world stream.
type sotwClient struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	cancel context.CancelFunc
	got    chan *discoveryv3.DiscoveryResponse
	first  bool
	names  map[string][]string
	nonce  map[string]string
}

func (r *testServer) newSotwClient(t *testing.T) *sotwClient {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(r.conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &sotwClient{t: t, stream: stream, cancel: cancel, got: make(chan *discoveryv3.DiscoveryResponse, 4096), first: true,
		names: map[string][]string{}, nonce: map[string]string{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(c.got)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			c.got <- m
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func (c *sotwClient) send(r *discoveryv3.DiscoveryRequest) {
	c.t.Helper()
	if c.first {
		r.Node = &corev3.Node{Id: "sidecar~1.1.1.1~a.default~default.svc.cluster.local"}
		c.first = false
	}
	if err := c.stream.Send(r); err != nil {
		c.t.Fatal(err)
	}
}

// request replaces the subscription of a type.
func (c *sotwClient) request(typeURL string, names ...string) {
	c.t.Helper()
	c.names[typeURL] = names
	c.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names, ResponseNonce: c.nonce[typeURL]})
}

func (c *sotwClient) next() *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	select {
	case m, ok := <-c.got:
		if !ok {
			c.t.Fatal("the stream ended")
		}
		c.nonce[m.GetTypeUrl()] = m.GetNonce()
		return m
	case <-time.After(deadline):
		c.t.Fatal("no response arrived")
	}
	return nil
}

func (c *sotwClient) ack(m *discoveryv3.DiscoveryResponse, refusal string) {
	c.t.Helper()
	r := &discoveryv3.DiscoveryRequest{TypeUrl: m.GetTypeUrl(), VersionInfo: m.GetVersionInfo(), ResponseNonce: m.GetNonce(),
		ResourceNames: c.names[m.GetTypeUrl()]}
	if refusal != "" {
		r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: refusal}
	}
	c.send(r)
}

func (c *sotwClient) expect(want string) *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	m := c.next()
	if got := describeSotw(m); got != want {
		c.t.Fatalf("response is\n\t%s\nwant\n\t%s", got, want)
	}
	c.ack(m, "")
	return m
}

func (c *sotwClient) expectNothing() {
	c.t.Helper()
	probe := "type.googleapis.com/test.Probe"
	c.send(&discoveryv3.DiscoveryRequest{TypeUrl: probe})
	if m := c.next(); m.GetTypeUrl() != probe {
		c.t.Fatalf("unexpected response: %s", describeSotw(m))
	}
}

// describeSotw describes a response by the contents of its resources, which have no names in this variant.
func describeSotw(m *discoveryv3.DiscoveryResponse) string {
	var words []string
	for _, r := range m.GetResources() {
		words = append(words, string(r.GetValue()))
	}
	sort.Strings(words)
	return strings.TrimSpace(ShortType(m.GetTypeUrl()) + " " + strings.Join(words, " "))
}

var sotwState = meshState{
	cds: {"a": "eds-a1", "b": "static-b1"},
	eds: {"a": "ends-a1", "b": "ends-b1"},
	lds: {"l1": "l1-1", "l2": "l2-1"},
	rds: {"r1": "r1-1", "r2": "r2-1"},
}

func startSotw(t *testing.T) (*testServer, *sotwClient) {
	r := newTestServer(t, Config{})
	r.push(sotwState)
	return r, r.newSotwClient(t)
}

func TestSotwListenersAndClustersAreSentCompletely(t *testing.T) {
	r, c := startSotw(t)
	c.request(lds)
	c.expect("lds l1-1 l2-1")
	c.expectNothing()
	r.push(sotwState.withResource(lds, "l2", "l2-2"), lds)
	c.expect("lds l1-1 l2-2")
	r.push(sotwState.withoutResource(lds, "l2"), lds)
	c.expect("lds l1-1")
	c.expectNothing()
}

func TestSotwUnchangedTypesAreNotSent(t *testing.T) {
	r, c := startSotw(t)
	c.request(lds)
	c.expect("lds l1-1 l2-1")
	r.push(sotwState, lds)
	c.expectNothing()
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync && s.Protocol == "sotw" })
}

func TestSotwNamedTypesAreSentPartially(t *testing.T) {
	r, c := startSotw(t)
	c.request(eds, "a", "b")
	c.expect("eds ends-a1 ends-b1")
	c.expectNothing()
	r.push(sotwState.withResource(eds, "b", "ends-b2"), eds)
	c.expect("eds ends-b2")
	c.expectNothing()
}

func TestSotwAddedNamesAreSentAndRemovedOnesAreNotAnswered(t *testing.T) {
	r, c := startSotw(t)
	c.request(rds, "r1")
	c.expect("rds r1-1")
	c.request(rds, "r1", "r2")
	c.expect("rds r2-1")
	c.request(rds, "r2")
	c.expectNothing()
	r.push(sotwState.withResource(rds, "r1", "r1-2"), rds)
	r.awaitStatus("the push", func(s ClientStatus) bool { return !s.Pushing })
	c.expectNothing()
	c.request(rds, "r1", "r2")
	c.expect("rds r1-2")
}

func TestSotwNamedListenersAreSentCompletely(t *testing.T) {
	_, c := startSotw(t)
	c.request(lds, "l1") // gRPC's own clients send this request
	c.expect("lds l1-1")
	c.request(lds, "l1", "l2")
	c.expect("lds l1-1 l2-1")
	c.request(lds, "l2")
	c.expect("lds l2-1")
	c.request(lds)
	c.expect("lds")
}

func TestSotwStaleNonceIsNotAnswered(t *testing.T) {
	r, c := startSotw(t)
	c.request(rds, "r1")
	first := c.next()
	r.push(sotwState.withResource(rds, "r1", "r1-2"), rds)
	second := c.next()
	c.names[rds] = []string{"r1", "r2"}
	c.ack(first, "") // outdated: the client's ACK of the second response is on its way
	c.expectNothing()
	c.ack(second, "")
	c.expect("rds r2-1")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestSotwEmptyNonceRestartsTheSubscription(t *testing.T) {
	_, c := startSotw(t)
	c.request(lds)
	c.expect("lds l1-1 l2-1")
	c.nonce[lds] = ""
	c.request(lds)
	c.expect("lds l1-1 l2-1")
}

func TestSotwRejectionIsRecordedAndNotAnswered(t *testing.T) {
	r, c := startSotw(t)
	c.request(lds)
	c.expect("lds l1-1 l2-1")
	bad := sotwState.withResource(lds, "l1", "l1-bad")
	r.push(bad, lds)
	c.ack(c.next(), "l1: bad")
	c.expectNothing()
	r.push(bad, lds)
	c.expectNothing()
	st := r.awaitStatus("rejected", func(s ClientStatus) bool { return typeStatus(s, lds).Rejected != nil })
	if got := typeStatus(st, lds).Rejected.Resources; len(got) != 1 || got[0] != "l1" || st.InSync {
		t.Fatalf("the rejected resources are %v", got)
	}
	r.push(bad.withResource(lds, "l1", "l1-2"), lds)
	c.expect("lds l1-2 l2-1")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestSotwAssignmentFollowsItsClusterEvenUnchanged(t *testing.T) {
	r, c := startSotw(t)
	c.request(cds)
	c.expect("cds eds-a1 static-b1")
	c.request(eds, "a")
	c.expect("eds ends-a1")
	c.expectNothing()
	r.push(sotwState.withResource(cds, "a", "eds-a2"), cds)
	c.expect("cds eds-a2 static-b1")
	c.expect("eds ends-a1")
}

func TestSotwClustersAreRemovedLast(t *testing.T) {
	r, c := startSotw(t)
	c.request(cds)
	c.expect("cds eds-a1 static-b1")
	c.request(lds)
	c.expect("lds l1-1 l2-1")
	next := sotwState.withoutResource(cds, "b").withResource(cds, "c", "static-c1").withResource(lds, "l1", "l1-2")
	r.push(next, cds, lds)
	c.expect("cds eds-a1 static-b1 static-c1")
	c.expect("lds l1-2 l2-1")
	c.expect("cds eds-a1 static-c1")
	c.expectNothing()
	r.push(next.withoutResource(cds, "c").withResource(lds, "l1", "l1-3"), cds, lds)
	c.expect("lds l1-3 l2-1")
	c.expect("cds eds-a1")
	c.expectNothing()
}

func TestSotwUnservedTypesAreAnsweredEmptyOnce(t *testing.T) {
	_, c := startSotw(t)
	const secrets = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	c.request(secrets, "x")
	if m := c.next(); len(m.GetResources()) != 0 {
		t.Fatal(m)
	}
	c.request(secrets, "x")
	c.expectNothing()
	c.send(&discoveryv3.DiscoveryRequest{TypeUrl: healthReportType})
	c.request(lds)
	c.expect("lds l1-1 l2-1")
}
