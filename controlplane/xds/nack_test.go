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
	r := newRig(t, Config{Registerer: registry})
	r.push(small)
	c := r.delta()
	c.subscribe(lds)
	c.nack(c.next(), "Error adding/updating listener(s) l2: bad address")
	st := r.only("the rejection", func(s ClientStatus) bool { return typeOf(s, lds).Rejected != nil })
	rejected := typeOf(st, lds).Rejected
	if st.InSync || rejected.At.IsZero() || !strings.Contains(rejected.Reason, "bad address") || !slices.Equal(rejected.Resources, []string{"l2"}) {
		t.Fatalf("status is %+v, rejection %+v", st, rejected)
	}
	want := "# HELP pilot_total_xds_rejects Responses that clients rejected, by type.\n# TYPE pilot_total_xds_rejects counter\n" +
		"pilot_total_xds_rejects{type=\"lds\"} 1\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "pilot_total_xds_rejects"); err != nil {
		t.Fatal(err)
	}
}

func TestReasonIsKeptAsFarAsItCanBeShown(t *testing.T) {
	for length, want := range map[int]int{0: 0, maxReason: maxReason, maxReason + 10: maxReason + len(" … and 10 bytes more")} {
		if got := len(bounded(strings.Repeat("x", length))); got != want {
			t.Errorf("of %d bytes %d are kept, and not %d", length, got, want)
		}
	}
	if got := bounded(strings.Repeat("…", maxReason)); !utf8.ValidString(got) || !strings.HasSuffix(got, " bytes more") {
		t.Errorf("a character is cut: %q", got[maxReason-10:])
	}
}

func TestRejectedResourceIsNotSentAgainUntilItChanges(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	bad := small.with(lds, "l1", "bad")
	r.push(bad, lds)
	c.nack(c.next(), "no")
	c.silence()
	r.push(bad.with(lds, "l2", "2"), lds)
	c.expect("lds +l2=2")
	c.silence()
	r.only("still rejected", func(s ClientStatus) bool { return typeOf(s, lds).Rejected != nil && !s.InSync })
	r.push(bad.with(lds, "l2", "2").with(lds, "l1", "good"), lds)
	c.expect("lds +l1=good")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync && typeOf(s, lds).Rejected == nil })
}

func TestRejectedResourceThatReturnsToItsOldContentIsSent(t *testing.T) {
	// After a rejection only the client knows what it has.
	r, c := startSmall(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(small.with(lds, "l1", "bad"), lds)
	c.nack(c.next(), "no")
	c.silence()
	r.push(small, lds)
	c.expect("lds +l1=1")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestRejectedResourceThatGoesIsRemoved(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(small.with(lds, "l1", "bad"), lds)
	c.nack(c.next(), "no")
	c.silence()
	r.push(small.without(lds, "l1"), lds)
	c.expect("lds -l1")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestRejectedRemovalIsRepeatedWithTheNextChange(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(small.without(lds, "l1"), lds)
	c.nack(c.next(), "cannot")
	c.silence()
	r.push(small.without(lds, "l1").with(lds, "l2", "2"), lds)
	c.expect("lds +l2=2 -l1")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestGoodResourcesOfARejectedResponseArriveAndTheBadOneIsIsolated(t *testing.T) {
	many := world{lds: {}}
	for i := range 100 {
		many[lds][fmt.Sprintf("l%02d", i)] = "1"
	}
	r := newRig(t, Config{})
	r.push(many)
	c := r.delta()
	has := map[string]bool{}
	answer := func(m *discoveryv3.DeltaDiscoveryResponse) {
		// The client takes a response whole or not at all, and its reason names nobody.
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
	r.only("the answer", func(s ClientStatus) bool { return typeOf(s, lds).Unanswered == 0 && len(s.Types) == 1 })
	for change := 0; len(has) < 99+change; change++ {
		if change == 5 {
			t.Fatalf("after %d changes the client has %d of 99 good resources", change, len(has)-change)
		}
		many = many.with(lds, fmt.Sprintf("new%d", change), "1")
		r.push(many, lds)
		for _, m := range c.batch(r) {
			answer(m)
		}
		r.only("the answers", func(s ClientStatus) bool { return typeOf(s, lds).Unanswered == 0 })
	}
	st := r.only("the client", func(ClientStatus) bool { return true })
	if got := typeOf(st, lds).Rejected.Resources; !slices.Equal(got, []string{"l42"}) {
		t.Fatalf("rejected are %v", got)
	}
}

func TestRejectionOfAnOlderResponseDoesNotTouchTheNewer(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	r.push(small.with(lds, "l1", "bad"), lds)
	bad := c.next()
	r.push(small.with(lds, "l1", "good"), lds)
	good := c.next()
	c.nack(bad, "no")
	c.silence()
	r.only("rejected", func(s ClientStatus) bool { return typeOf(s, lds).Rejected != nil })
	c.ack(good)
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
	r.push(small.with(lds, "l1", "good").with(lds, "l2", "2"), lds)
	c.expect("lds +l2=2")
}

func TestAnswerToALaterResponseSettlesTheEarlier(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(lds)
	c.next() // dropped by the client
	r.push(small.with(lds, "l1", "2"), lds)
	c.ack(c.next())
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
}

func TestUnknownNonceChangesNothing(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(lds)
	m := c.next()
	m.Nonce = "no such nonce"
	c.nack(m, "stale")
	c.silence()
	st := r.only("the stream", func(s ClientStatus) bool { return true })
	if ts := typeOf(st, lds); ts.Rejected != nil || ts.Unanswered != 1 {
		t.Fatalf("status is %+v", ts)
	}
}

func TestReasonNamesAResourceAsAWord(t *testing.T) {
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
		if got := mentions(c.reason, c.name); got != c.want {
			t.Errorf("mentions(%q, %q) = %v", c.reason, c.name, got)
		}
	}
}

func TestAcknowledgedRemovalSettlesAnEarlierRejection(t *testing.T) {
	r, c := startSmall(t)
	c.subscribe(eds, "a", "b", "ghost")
	first := c.next() // which also says that there is no ghost
	r.push(small.with(eds, "ghost", "bad"), eds)
	second := c.next()
	r.push(small, eds)
	third := c.next()
	c.nack(first, "a: bad")
	c.nack(second, "ghost: bad")
	c.ack(third)
	st := r.only("all answers", func(s ClientStatus) bool { return typeOf(s, eds).Unanswered == 0 })
	if got := typeOf(st, eds).Rejected; got == nil || !slices.Equal(got.Resources, []string{"a"}) {
		t.Fatalf("rejected are %+v", got)
	}
}

// Which configurations a filter may have its listener says. One that was refused when the listener was wrong is right when
// that is.
func TestFiltersConfigurationThatWasRefusedIsSentAgainWithTheNextListener(t *testing.T) {
	with := small.with(ExtensionType, "plugin", "http")
	r := newRig(t, Config{})
	r.push(with)
	c := r.delta()
	c.subscribe(lds)
	c.expect("lds +l1=1 +l2=1")
	c.subscribe(ExtensionType, "plugin")
	c.nack(c.next(), "Error: filter config has type URL http but expect network")
	c.silence()
	r.push(with.with(lds, "l3", "bad"), lds)
	c.nack(c.next(), "no") // a listener that is refused changes nothing
	c.silence()
	r.push(with.with(lds, "l3", "1"), lds)
	c.expect("lds +l3=1")
	c.expect("ecds +plugin=http")
	r.only("in sync", func(s ClientStatus) bool { return s.InSync })
	r.push(with.with(lds, "l3", "2"), lds)
	c.expect("lds +l3=2")
	c.silence() // what it has is not sent again
}
