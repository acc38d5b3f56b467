package xds

import (
	"errors"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var smallState = meshState{
	cds: {"a": "eds1", "b": "static1"},
	eds: {"a": "ends1", "b": "ends1"},
	lds: {"l1": "1", "l2": "1"},
	rds: {"r1": "1", "r2": "1"},
}

func startDelta(t *testing.T) (*testServer, *deltaClient) {
	r := newTestServer(t, Config{})
	r.push(smallState)
	return r, r.newDeltaClient()
}

func TestEmptyFirstRequestSubscribesToAllClustersAndListeners(t *testing.T) {
	_, c := startDelta(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	c.expectNothing()
}

func TestEmptyFirstRequestForNamedTypesIsAnsweredEmpty(t *testing.T) {
	_, c := startDelta(t)
	c.subscribe(eds)
	c.expect("eds")
	c.subscribe(rds)
	c.expect("rds")
	c.expectNothing()
}

func TestFirstRequestIsAnsweredEvenIfEmpty(t *testing.T) {
	r := newTestServer(t, Config{})
	r.push(meshState{})
	c := r.newDeltaClient()
	c.subscribe(cds)
	c.expect("cds")
	c.subscribe(lds)
	c.expect("lds")
}

func TestNamesAddToTheWildcard(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(cds, "b", "ghost")
	c.expect("cds +b=static1 -ghost")
	r.push(smallState.withResource(cds, "c", "static1"), cds)
	c.expect("cds +c=static1")
}

func TestStarWithNamesSubscribesToBoth(t *testing.T) {
	_, c := startDelta(t)
	c.subscribe(cds, "*", "ghost")
	c.expect("cds +a=eds1 +b=static1 -ghost")
	c.expectNothing()
}

func TestNamesWithoutStarAreNoWildcard(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds, "b")
	c.expect("cds +b=static1")
	r.push(smallState.withResource(cds, "a", "eds2"), cds)
	c.expectNothing()
	c.subscribe(cds, "*")
	c.expect("cds +a=eds2")
}

func TestSubscribingAndUnsubscribingTheStarIsNoWildcard(t *testing.T) {
	r, c := startDelta(t)
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}, ResourceNamesUnsubscribe: []string{"*"}})
	c.expect("cds")
	r.push(smallState.withResource(cds, "a", "eds2"), cds)
	c.expectNothing()
}

func TestUnsubscribingTheStarKeepsNames(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds, "*", "b")
	c.expect("cds +a=eds1 +b=static1")
	c.unsubscribe(cds, "*")
	c.expectNothing()
	r.push(smallState.withResource(cds, "a", "eds2").withResource(cds, "b", "static2"), cds)
	c.expect("cds +b=static2")
}

func TestUnsubscribedNameIsSentAgainWhileTheWildcardCoversIt(t *testing.T) {
	_, c := startDelta(t)
	c.subscribe(cds, "*", "b", "ghost")
	c.expect("cds +a=eds1 +b=static1 -ghost")
	c.unsubscribe(cds, "b", "ghost")
	c.expect("cds +b=static1 -ghost")
}

func TestUnsubscribedNameIsNotPushed(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(eds, "a", "b")
	c.expect("eds +a=ends1 +b=ends1")
	c.unsubscribe(eds, "a")
	c.expectNothing()
	r.push(smallState.withResource(eds, "a", "ends2"), eds)
	c.expectNothing()
}

func TestNameSubscribedAgainIsSentAgain(t *testing.T) {
	_, c := startDelta(t)
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	c.unsubscribe(eds, "a")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
}

func TestMissingNameIsReportedAndSentOnceItExists(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(rds, "r1", "later")
	c.expect("rds +r1=1 -later")
	r.push(smallState.withResource(rds, "later", "1"), rds)
	c.expect("rds +later=1")
}

func TestOnlyDifferencesArePushed(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(smallState, lds)
	r.push(smallState.withResource(lds, "l2", "2"), lds)
	c.expect("lds +l2=2")
	c.expectNothing()
}

func TestUnaffectedTypesAreNotGenerated(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	c.expectNothing()
	before := r.source.generateCalls()
	r.push(smallState.withResource(lds, "l2", "2"))
	c.expectNothing()
	r.awaitStatus("the push", func(s ClientStatus) bool { return !s.Pushing })
	if r.source.generateCalls() != before {
		t.Fatal("the server called Generate although the change affects no resource")
	}
}

func TestAssignmentFollowsItsClusterEvenUnchanged(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	r.push(smallState.withResource(cds, "a", "eds2"), cds)
	m := c.next() // the test does not wait for the ACK of this response, which
	if describe(m) != "cds +a=eds2" {
		t.Fatal(describe(m))
	}
	c.expect("eds +a=ends1")
	c.expectNothing()
}

func TestAssignmentOfNewClusterIsSentBeforeItsRequest(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	r.push(smallState.withResource(cds, "n", "eds1").withResource(eds, "n", "ends1"), cds, eds)
	c.expect("cds +n=eds1")
	c.expect("eds +n=ends1")
	c.subscribe(eds, "n")
	c.expect("eds +n=ends1")
	r.push(smallState.withResource(cds, "n", "eds1").withResource(eds, "n", "ends2"), eds)
	c.expect("eds +n=ends2")
}

func TestAdditionsAreSentInOrderAndClustersRemovedLast(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	c.subscribe(rds, "r1", "r2")
	c.expect("rds +r1=1")
	c.expect("rds +r2=1")
	next := smallState.withoutResource(cds, "a").withoutResource(eds, "a").withoutResource(lds, "l1").withoutResource(rds, "r1").
		withResource(cds, "c", "eds1").withResource(eds, "c", "ends1").withResource(lds, "l3", "1").withResource(rds, "r2", "2")
	r.push(next, rds, lds, eds, cds)
	c.expect("cds +c=eds1")
	c.expect("eds +c=ends1")
	c.expect("lds +l3=1 -l1")
	c.expect("rds +r2=2 -r1")
	c.expect("eds -a")
	c.expect("cds -a")
	c.expectNothing()
}

func TestEachRouteConfigurationHasItsOwnResponse(t *testing.T) {
	_, c := startDelta(t)
	c.subscribe(rds, "r1", "r2", "ghost")
	c.expect("rds +r1=1")
	c.expect("rds +r2=1 -ghost")
}

func TestUnservedTypesAreAnswered(t *testing.T) {
	r, c := startDelta(t)
	const runtimes = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
	const secrets = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	c.subscribe(runtimes)
	if m := c.next(); describe(m) != "Runtime" {
		t.Fatal(describe(m))
	}
	c.subscribe(secrets, "x", "*")
	if m := c.next(); describe(m) != "sds -x" {
		t.Fatal(describe(m))
	}
	c.subscribe(secrets, "y")
	c.expect("sds -y")
	r.push(smallState)
	c.expectNothing()
	r.awaitStatus("the client counts as in sync although it sent no ACK", func(s ClientStatus) bool { return s.InSync })
}

func TestHealthReportsAreNotAnswered(t *testing.T) {
	_, c := startDelta(t)
	c.subscribe(healthReportType)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
}

func TestFirstRequestWithoutNodeIsRefused(t *testing.T) {
	_, c := startDelta(t)
	c.first = false
	c.subscribe(cds)
	wantCode(t, c.awaitEnd(), codes.InvalidArgument)
}

func TestSourceMayRefuseAClient(t *testing.T) {
	r := newTestServer(t, Config{Source: &fakeSource{connectErr: status.Error(codes.PermissionDenied, "not you")}})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(cds)
	wantCode(t, c.awaitEnd(), codes.PermissionDenied)
	if len(r.Clients()) != 0 {
		t.Fatal("the status lists a refused client")
	}
}

func TestStreamsAreRefusedBeforeTheFirstPush(t *testing.T) {
	r := newTestServer(t, Config{})
	c := r.newDeltaClient()
	c.subscribe(cds)
	wantCode(t, c.awaitEnd(), codes.Unavailable)
	r.push(smallState)
	again := r.newDeltaClient()
	again.subscribe(cds)
	again.expect("cds +a=eds1 +b=static1")
}

func TestStopEndsStreamsAndRefusesNewOnes(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	r.Stop()
	wantCode(t, c.awaitEnd(), codes.Unavailable)
	late := r.newDeltaClient()
	late.subscribe(cds)
	wantCode(t, late.awaitEnd(), codes.Unavailable)
}

func TestFailedGenerationSendsNothingAndIsRetried(t *testing.T) {
	for name, broken := range map[string]func(string) error{
		"error": func(typeURL string) error {
			if typeURL == lds {
				return errors.New("cannot build listeners")
			}
			return nil
		},
		"panic": func(typeURL string) error {
			if typeURL == lds {
				panic("cannot build listeners")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, c := startDelta(t)
			c.subscribe(cds)
			c.expect("cds +a=eds1 +b=static1")
			c.subscribe(lds)
			c.expect("lds +l1=1 +l2=1")
			r.source.mu.Lock()
			r.source.generateErr = broken
			r.source.mu.Unlock()
			r.push(smallState.withResource(lds, "l1", "2").withResource(cds, "b", "static2"), cds, lds)
			c.expect("cds +b=static2")
			r.awaitStatus("the error", func(s ClientStatus) bool { return typeStatus(s, lds).Error != "" && !s.InSync })
			r.source.mu.Lock()
			r.source.generateErr = nil
			r.source.mu.Unlock()
			// The change itself affects no resource of the client.
			r.push(smallState.withResource(lds, "l1", "2").withResource(cds, "b", "static2"))
			c.expect("lds +l1=2")
			r.awaitStatus("the error's end", func(s ClientStatus) bool { return s.InSync })
		})
	}
}
