package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestRejectionIsRecordedWithReasonTimeAndNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := newTestServer(t, Config{Registerer: registry})
	r.push(smallState)
	c := r.newDeltaClient()
	c.subscribe(lds)
	c.nack(c.next(), "Error adding/updating listener(s) l2: bad address")
	st := r.awaitStatus("the rejection", func(s ClientStatus) bool { return typeStatus(s, lds).Rejected != nil })
	rejected := typeStatus(st, lds).Rejected
	if st.InSync || rejected.At.IsZero() || !strings.Contains(rejected.Reason, "bad address") || !slices.Equal(rejected.Resources, []string{"l2"}) {
		t.Fatalf("the status is %+v, the rejection %+v", st, rejected)
	}
	want := "# HELP pilot_total_xds_rejects Responses that clients rejected, by type.\n# TYPE pilot_total_xds_rejects counter\n" +
		"pilot_total_xds_rejects{type=\"lds\"} 1\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "pilot_total_xds_rejects"); err != nil {
		t.Fatal(err)
	}
}

func TestLongReasonIsTruncated(t *testing.T) {
	for length, want := range map[int]int{0: 0, maxReason: maxReason, maxReason + 10: maxReason + len(" … and 10 bytes more")} {
		if got := len(truncateReason(strings.Repeat("x", length))); got != want {
			t.Errorf("of a reason with %d bytes, %d are stored; want %d", length, got, want)
		}
	}
	if got := truncateReason(strings.Repeat("…", maxReason)); !utf8.ValidString(got) || !strings.HasSuffix(got, " bytes more") {
		t.Errorf("the reason is cut within a character: %q", got[maxReason-10:])
	}
}

func TestRejectedResourceIsNotSentAgainUntilItChanges(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	bad := smallState.withResource(lds, "l1", "bad")
	r.push(bad, lds)
	c.nack(c.next(), "no")
	c.expectNothing()
	r.push(bad.withResource(lds, "l2", "2"), lds)
	c.expect("lds +l2=2")
	c.expectNothing()
	r.awaitStatus("still rejected", func(s ClientStatus) bool { return typeStatus(s, lds).Rejected != nil && !s.InSync })
	r.push(bad.withResource(lds, "l2", "2").withResource(lds, "l1", "good"), lds)
	c.expect("lds +l1=good")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync && typeStatus(s, lds).Rejected == nil })
}

func TestRejectedResourceThatReturnsToItsOldContentIsSent(t *testing.T) {
	// After a rejection only the client knows which resources it has.
	r, c := startDelta(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(smallState.withResource(lds, "l1", "bad"), lds)
	c.nack(c.next(), "no")
	c.expectNothing()
	r.push(smallState, lds)
	c.expect("lds +l1=1")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestRejectedResourceIsRemovedWhenDeleted(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(smallState.withResource(lds, "l1", "bad"), lds)
	c.nack(c.next(), "no")
	c.expectNothing()
	r.push(smallState.withoutResource(lds, "l1"), lds)
	c.expect("lds -l1")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestRejectedRemovalIsResentWithTheNextChange(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(smallState.withoutResource(lds, "l1"), lds)
	c.nack(c.next(), "cannot")
	c.expectNothing()
	r.push(smallState.withoutResource(lds, "l1").withResource(lds, "l2", "2"), lds)
	c.expect("lds +l2=2 -l1")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestBadResourceOfRejectedResponseIsIsolated(t *testing.T) {
	many := meshState{lds: {}}
	for i := range 100 {
		many[lds][fmt.Sprintf("l%02d", i)] = "1"
	}
	r := newTestServer(t, Config{})
	r.push(many)
	c := r.newDeltaClient()
	has := map[string]bool{}
	answer := func(m *discoveryv3.DeltaDiscoveryResponse) {
		// The client rejects the whole response, and its reason names no resource.
		for _, res := range m.GetResources() {
			if res.GetName() == "l42" {
				c.nack(m, "no")
				return
			}
		}
		for _, res := range m.GetResources() {
			has[res.GetName()] = true
		}
		c.ack(m)
	}
	c.subscribe(lds)
	answer(c.next())
	r.awaitStatus("the answer", func(s ClientStatus) bool { return typeStatus(s, lds).Unanswered == 0 && len(s.Types) == 1 })
	for change := 0; len(has) < 99+change; change++ {
		if change == 5 {
			t.Fatalf("after %d changes the client has %d of 99 valid resources", change, len(has)-change)
		}
		many = many.withResource(lds, fmt.Sprintf("new%d", change), "1")
		r.push(many, lds)
		for _, m := range c.receivePush(r) {
			answer(m)
		}
		r.awaitStatus("the answers", func(s ClientStatus) bool { return typeStatus(s, lds).Unanswered == 0 })
	}
	st := r.awaitStatus("the client", func(ClientStatus) bool { return true })
	if got := typeStatus(st, lds).Rejected.Resources; !slices.Equal(got, []string{"l42"}) {
		t.Fatalf("the rejected resources are %v", got)
	}
}

func TestNACKOfOlderResponseDoesNotAffectTheNewer(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(smallState.withResource(lds, "l1", "bad"), lds)
	bad := c.next()
	r.push(smallState.withResource(lds, "l1", "good"), lds)
	good := c.next()
	c.nack(bad, "no")
	c.expectNothing()
	r.awaitStatus("rejected", func(s ClientStatus) bool { return typeStatus(s, lds).Rejected != nil })
	c.ack(good)
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
	r.push(smallState.withResource(lds, "l1", "good").withResource(lds, "l2", "2"), lds)
	c.expect("lds +l2=2")
}

func TestACKOfLaterResponseSettlesEarlierOnes(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(lds)
	c.next() // the client drops this response
	r.push(smallState.withResource(lds, "l1", "2"), lds)
	c.ack(c.next())
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestUnknownNonceChangesNothing(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(lds)
	m := c.next()
	m.Nonce = "no such nonce"
	c.nack(m, "stale")
	c.expectNothing()
	st := r.awaitStatus("the stream", func(s ClientStatus) bool { return true })
	if ts := typeStatus(st, lds); ts.Rejected != nil || ts.Unanswered != 1 {
		t.Fatalf("status is %+v", ts)
	}
}

func TestMentionsNameMatchesWholeWords(t *testing.T) {
	for _, c := range []struct {
		reason, name string
		want         bool
	}{
		{"Error adding/updating cluster(s) outbound|80||a: bad", "outbound|80||a", true},
		{"Error adding/updating cluster(s) outbound|80||ab: bad", "outbound|80||a", false},
		{"listener x80: bad, 80: bad", "80", true},
		{"listener x80", "80", false},
		{"", "a", false},
		{"a", "", false},
	} {
		if got := mentionsName(c.reason, c.name); got != c.want {
			t.Errorf("mentions(%q, %q) = %v", c.reason, c.name, got)
		}
	}
}

func TestACKedRemovalClearsEarlierRejection(t *testing.T) {
	r, c := startDelta(t)
	c.subscribe(eds, "a", "b", "ghost")
	first := c.next() // the response also reports that the resource ghost does not exist
	r.push(smallState.withResource(eds, "ghost", "bad"), eds)
	second := c.next()
	r.push(smallState, eds)
	third := c.next()
	c.nack(first, "a: bad")
	c.nack(second, "ghost: bad")
	c.ack(third)
	st := r.awaitStatus("all answers", func(s ClientStatus) bool { return typeStatus(s, eds).Unanswered == 0 })
	if got := typeStatus(st, eds).Rejected; got == nil || !slices.Equal(got.Resources, []string{"a"}) {
		t.Fatalf("the rejected resources are %+v", got)
	}
}

// A listener determines which types its filter configurations may have. A configuration that was rejected with an old
// listener may be valid with a new one.
func TestRejectedExtensionIsResentWithTheNextListener(t *testing.T) {
	with := smallState.withResource(ExtensionType, "plugin", "http")
	r := newTestServer(t, Config{})
	r.push(with)
	c := r.newDeltaClient()
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	c.subscribe(ExtensionType, "plugin")
	c.nack(c.next(), "Error: filter config has type URL http but expect network")
	c.expectNothing()
	r.push(with.withResource(lds, "l3", "bad"), lds)
	c.nack(c.next(), "no") // a rejected listener does not make the server send the extension again
	c.expectNothing()
	r.push(with.withResource(lds, "l3", "1"), lds)
	c.expect("lds +l3=1")
	c.expect("ecds +plugin=http")
	r.awaitStatus("in sync", func(s ClientStatus) bool { return s.InSync })
	r.push(with.withResource(lds, "l3", "2"), lds)
	c.expect("lds +l3=2")
	c.expectNothing() // known resources are not sent again
}
