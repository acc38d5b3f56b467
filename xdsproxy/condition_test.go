package xdsproxy

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// books is a ledger on a clock that the test moves, and what an Envoy and a control plane say to each other.
type books struct {
	*ledger
	t   *testing.T
	at  time.Time
	nth int
}

func newBooks(t *testing.T) *books {
	b := &books{t: t, at: time.Unix(1e9, 0)}
	b.ledger = newLedger(func() time.Time { return b.at }, slog.New(slog.DiscardHandler))
	b.reached("127.0.0.1:1")
	return b
}

func (b *books) connect(process int32) {
	b.envoyConnected(sotw, process)
	b.connected("127.0.0.1:1")
}

// exchange is a response, and Envoy's answer: a rejection when there is a reason.
func (b *books) exchange(typeURL, reason string) {
	b.nth++
	nonce := strings.Repeat("n", b.nth)
	b.response(response{typeURL: typeURL, nonce: nonce, version: nonce}, 1)
	b.request(sotw, request{typeURL: typeURL, nonce: nonce, names: []string{"n"}, rejected: reason != "", reason: reason}, response{})
}

// expect checks the condition of a process: OK when want begins with "ok", and the reason has the rest.
func (b *books) expect(when string, process int32, limit time.Duration, want string) {
	b.t.Helper()
	c := b.condition(process, limit)
	reason, ok := strings.CutPrefix(want, "ok ")
	if c.OK != ok || !strings.Contains(c.Reason, reason) || reason == "" != (c.Reason == "") {
		b.t.Errorf("%s: %+v, want %q", when, c, want)
	}
	if !c.OK && (c.Since.IsZero() || c.Remedy == "") {
		b.t.Errorf("%s: neither since when nor what to do: %+v", when, c)
	}
}

func TestEachEnvoyIsJudgedByWhatItGotItself(t *testing.T) {
	b := newBooks(t)
	b.expect("nobody there", 0, 0, "Envoy has not asked")
	b.connect(10)
	b.expect("asked, not answered", 10, 0, "has not answered yet")
	b.exchange(listenerType, "")
	b.expect("the first Envoy", 10, 0, "ok ")
	b.exchange(listenerType, "listener x: no")
	b.expect("it keeps what it had", 10, 0, "ok keeps the last good one: listener x: no")

	b.envoyDisconnected()
	b.at = b.at.Add(time.Minute)
	b.connect(11)
	if s := b.types[listenerType].state(); s != StateRequested {
		t.Errorf("the state of listeners is %q for an Envoy that has none", s)
	}
	b.expect("an Envoy that was started anew", 11, 0, "has not answered yet")
	restarted := b.at
	b.exchange(listenerType, "listener x: no")
	b.at = b.at.Add(time.Minute)
	b.exchange(listenerType, "listener x: still no")
	b.expect("it has nothing to go by", 11, 0, "rejected its first Listener configuration: listener x: still no")
	if c := b.condition(11, 0); !c.Since.Equal(restarted) {
		t.Errorf("since %v, want that of the first rejection, %v", c.Since, restarted)
	}
	b.expect("the one before it, while both run", 10, 0, "ok keeps the last good one")
	b.expect("whichever is in force", 0, 0, "rejected its first Listener")
	b.exchange(listenerType, "")
	b.expect("mended", 11, 0, "ok ")

	b.connect(10)
	b.expect("the older one, served again", 10, 0, "ok keeps the last good one")
}

func TestLostControlPlaneMakesUnreadyOnlyWhenToldTo(t *testing.T) {
	b := newBooks(t)
	b.connect(1)
	b.exchange(clusterType, "")
	lost := b.at.Add(time.Hour)
	b.at = lost
	b.disconnected("127.0.0.1:1", errors.New("connection refused"))
	b.at = b.at.Add(time.Minute)
	const why = "not connected to the control plane 127.0.0.1:1: connection refused; last good configuration 1m0s old"
	b.expect("by default", 1, 0, "ok "+why)
	b.expect("before the limit", 1, 61*time.Second, "ok "+why)
	b.expect("from the limit on", 1, time.Minute, why)
	if c := b.condition(1, time.Minute); !c.Since.Equal(lost) {
		t.Errorf("since %v, want %v", c.Since, lost)
	}
	b.connected("127.0.0.1:1")
	b.expect("found again", 1, time.Minute, "ok ")
}

func TestBooksOfEnvoysThatEndedDoNotPileUp(t *testing.T) {
	b := newBooks(t)
	for process := range int32(1000) {
		b.connect(process)
		b.exchange(clusterType, "")
		b.expect("in force", process, 0, "ok ")
	}
	if n := len(b.envoys); n > mostProcesses {
		t.Errorf("%d books are kept", n)
	}
}
