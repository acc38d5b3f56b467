package xds

import (
	"errors"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var small = world{
	cds: {"a": "eds1", "b": "static1"},
	eds: {"a": "ends1", "b": "ends1"},
	lds: {"l1": "1", "l2": "1"},
	rds: {"r1": "1", "r2": "1"},
}

func startSmall(t *testing.T) (*rig, *deltaClient) {
	r := newRig(t, Config{})
	r.push(small)
	return r, r.delta()
}

func TestEmptyFirstRequestSubscribesToAllClustersAndListeners(t *testing.T) {
	_, c := startSmall(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	c.silence()
}

func TestEmptyFirstRequestForNamedTypesIsAnsweredEmpty(t *testing.T) {
	_, c := startSmall(t)
	c.subscribe(eds)
	c.expect("eds")
	c.subscribe(rds)
	c.expect("rds")
	c.silence()
}

func TestEmptyAnswerIsSentWhenThereIsNothing(t *testing.T) {
	r := newRig(t, Config{})
	r.push(world{})
	c := r.delta()
	c.subscribe(cds)
	c.expect("cds")
	c.subscribe(lds)
	c.expect("lds")
}

func TestNamesAddToTheWildcard(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(cds, "b", "ghost")
	c.expect("cds +b=static1 -ghost")
	r.push(small.with(cds, "c", "static1"), cds)
	c.expect("cds +c=static1")
}

func TestStarWithNamesIsBoth(t *testing.T) {
	_, c := startSmall(t)
	c.subscribe(cds, "*", "ghost")
	c.expect("cds +a=eds1 +b=static1 -ghost")
	c.silence()
}

func TestNamesAloneAreNoWildcard(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds, "b")
	c.expect("cds +b=static1")
	r.push(small.with(cds, "a", "eds2"), cds)
	c.silence()
	c.subscribe(cds, "*")
	c.expect("cds +a=eds2")
}

func TestSubscribingAndUnsubscribingTheStarIsNoWildcard(t *testing.T) {
	r, c := startSmall(t)
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}, ResourceNamesUnsubscribe: []string{"*"}})
	c.expect("cds")
	r.push(small.with(cds, "a", "eds2"), cds)
	c.silence()
}

func TestUnsubscribingTheStarKeepsNames(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds, "*", "b")
	c.expect("cds +a=eds1 +b=static1")
	c.unsubscribe(cds, "*")
	c.silence()
	r.push(small.with(cds, "a", "eds2").with(cds, "b", "static2"), cds)
	c.expect("cds +b=static2")
}

func TestUnsubscribedNameIsSentAgainWhileTheWildcardCoversIt(t *testing.T) {
	_, c := startSmall(t)
	c.subscribe(cds, "*", "b", "ghost")
	c.expect("cds +a=eds1 +b=static1 -ghost")
	c.unsubscribe(cds, "b", "ghost")
	c.expect("cds +b=static1 -ghost")
}

func TestUnsubscribedNameIsNotPushed(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(eds, "a", "b")
	c.expect("eds +a=ends1 +b=ends1")
	c.unsubscribe(eds, "a")
	c.silence()
	r.push(small.with(eds, "a", "ends2"), eds)
	c.silence()
}

func TestNameSubscribedAgainIsSentAgain(t *testing.T) {
	_, c := startSmall(t)
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	c.unsubscribe(eds, "a")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
}

func TestMissingNameIsSaidToBeMissingAndSentOnceItExists(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(rds, "r1", "later")
	c.expect("rds +r1=1 -later")
	r.push(small.with(rds, "later", "1"), rds)
	c.expect("rds +later=1")
}

func TestOnlyWhatDiffersIsPushed(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(small, lds)
	r.push(small.with(lds, "l2", "2"), lds)
	c.expect("lds +l2=2")
	c.silence()
}

func TestUnaffectedTypesAreNotGenerated(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	c.silence()
	before := r.source.count()
	r.push(small.with(lds, "l2", "2"))
	c.silence()
	r.only("the push", func(s ClientStatus) bool { return !s.Pushing })
	if r.source.count() != before {
		t.Fatal("Generate was called although nothing is affected")
	}
}

func TestAssignmentFollowsItsClusterEvenUnchanged(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	r.push(small.with(cds, "a", "eds2"), cds)
	m := c.next() // without waiting for its acknowledgement, which comes only when the cluster is warm
	if show(m) != "cds +a=eds2" {
		t.Fatal(show(m))
	}
	c.expect("eds +a=ends1")
	c.silence()
}

func TestAssignmentOfANewClusterFollowsBeforeItIsAskedFor(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	r.push(small.with(cds, "n", "eds1").with(eds, "n", "ends1"), cds, eds)
	c.expect("cds +n=eds1")
	c.expect("eds +n=ends1")
	c.subscribe(eds, "n")
	c.expect("eds +n=ends1")
	r.push(small.with(cds, "n", "eds1").with(eds, "n", "ends2"), eds)
	c.expect("eds +n=ends2")
}

func TestAdditionsGoFirstInOrderAndClustersAreRemovedLast(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	c.subscribe(eds, "a")
	c.expect("eds +a=ends1")
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	c.subscribe(rds, "r1", "r2")
	c.expect("rds +r1=1")
	c.expect("rds +r2=1")
	next := small.without(cds, "a").without(eds, "a").without(lds, "l1").without(rds, "r1").
		with(cds, "c", "eds1").with(eds, "c", "ends1").with(lds, "l3", "1").with(rds, "r2", "2")
	r.push(next, rds, lds, eds, cds)
	c.expect("cds +c=eds1")
	c.expect("eds +c=ends1")
	c.expect("lds +l3=1 -l1")
	c.expect("rds +r2=2 -r1")
	c.expect("eds -a")
	c.expect("cds -a")
	c.silence()
}

func TestEachRouteConfigurationGoesAlone(t *testing.T) {
	_, c := startSmall(t)
	c.subscribe(rds, "r1", "r2", "ghost")
	c.expect("rds +r1=1")
	c.expect("rds +r2=1 -ghost")
}

func TestUnservedTypesAreAnsweredSoThatNobodyWaits(t *testing.T) {
	r, c := startSmall(t)
	const runtimes = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
	const secrets = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	c.subscribe(runtimes)
	if m := c.next(); show(m) != "Runtime" {
		t.Fatal(show(m))
	}
	c.subscribe(secrets, "x", "*")
	if m := c.next(); show(m) != "sds -x" {
		t.Fatal(show(m))
	}
	c.subscribe(secrets, "y")
	c.expect("sds -y")
	r.push(small)
	c.silence()
	r.only("in sync although it confirmed nothing", func(s ClientStatus) bool { return s.InSync })
}

func TestHealthReportsAreNotAnswered(t *testing.T) {
	_, c := startSmall(t)
	c.subscribe(healthReportType)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
}

func TestFirstRequestWithoutNodeIsRefused(t *testing.T) {
	_, c := startSmall(t)
	c.first = false
	c.subscribe(cds)
	wantCode(t, c.end(), codes.InvalidArgument)
}

func TestSourceMayRefuseAClient(t *testing.T) {
	r := newRig(t, Config{Source: &fake{refuse: status.Error(codes.PermissionDenied, "not you")}})
	r.push(small)
	c := r.delta()
	c.subscribe(cds)
	wantCode(t, c.end(), codes.PermissionDenied)
	if len(r.Clients()) != 0 {
		t.Fatal("a refused client is listed")
	}
}

func TestStreamsAreRefusedBeforeTheFirstPush(t *testing.T) {
	r := newRig(t, Config{})
	c := r.delta()
	c.subscribe(cds)
	wantCode(t, c.end(), codes.Unavailable)
	r.push(small)
	again := r.delta()
	again.subscribe(cds)
	again.expect("cds +a=eds1 +b=static1")
}

func TestStopEndsStreamsAndRefusesNewOnes(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(cds)
	c.expect("cds +a=eds1 +b=static1")
	r.Stop()
	wantCode(t, c.end(), codes.Unavailable)
	late := r.delta()
	late.subscribe(cds)
	wantCode(t, late.end(), codes.Unavailable)
}

func TestFailedGenerationLeavesTheClientAloneAndIsTriedAgain(t *testing.T) {
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
			r, c := startSmall(t)
			c.subscribe(cds)
			c.expect("cds +a=eds1 +b=static1")
			c.subscribe(lds)
			c.expect("lds +l1=1 +l2=1")
			r.source.mu.Lock()
			r.source.broken = broken
			r.source.mu.Unlock()
			r.push(small.with(lds, "l1", "2").with(cds, "b", "static2"), cds, lds)
			c.expect("cds +b=static2")
			r.only("the error", func(s ClientStatus) bool { return typeOf(s, lds).Error != "" && !s.InSync })
			r.source.mu.Lock()
			r.source.broken = nil
			r.source.mu.Unlock()
			r.push(small.with(lds, "l1", "2").with(cds, "b", "static2")) // which by itself concerns nothing
			c.expect("lds +l1=2")
			r.only("the error's end", func(s ClientStatus) bool { return s.InSync })
		})
	}
}
