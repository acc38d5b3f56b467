package xdsproxy

import (
	"errors"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// trackerTest is a tracker with a fake clock, and simulates the messages of an Envoy and a control plane.
type trackerTest struct {
	*statusTracker
	t     *testing.T
	now   time.Time
	count int
}

func newTrackerTest(t *testing.T) *trackerTest {
	b := &trackerTest{t: t, now: time.Unix(1e9, 0)}
	b.statusTracker = newStatusTracker(func() time.Time { return b.now }, slog.New(slog.DiscardHandler))
	b.markReachable("127.0.0.1:1")
	return b
}

func (b *trackerTest) connect(process int32) {
	b.markEnvoyConnected(wire.SotW, process)
	b.markConnected("127.0.0.1:1")
}

// exchange simulates a response and Envoy's reply: a NACK if reason is not empty, otherwise an ACK.
func (b *trackerTest) exchange(typeURL, reason string) {
	b.count++
	nonce := strings.Repeat("n", b.count)
	b.recordResponse(wire.Response{TypeURL: typeURL, Nonce: nonce, Version: nonce}, 1)
	b.recordRequest(wire.SotW, wire.Request{TypeURL: typeURL, Nonce: nonce, Names: []string{"n"}, Rejected: reason != "", Reason: reason}, wire.Response{})
}

// expect checks the condition of a process. If want starts with "ok", the condition must be OK. Its reason must contain the
// rest of want.
func (b *trackerTest) expect(when string, process int32, limit time.Duration, want string) {
	b.t.Helper()
	c := b.condition(process, limit)
	reason, ok := strings.CutPrefix(want, "ok ")
	if c.OK != ok || !strings.Contains(c.Reason, reason) || reason == "" != (c.Reason == "") {
		b.t.Errorf("%s: %+v, want %q", when, c, want)
	}
	if !c.OK && (c.Since.IsZero() || c.Remedy == "") {
		b.t.Errorf("%s: the condition has no Since or no Remedy: %+v", when, c)
	}
}

func TestConditionIsPerEnvoyProcess(t *testing.T) {
	b := newTrackerTest(t)
	b.expect("no Envoy", 0, 0, "Envoy has not requested")
	b.connect(10)
	b.expect("requested, not answered", 10, 0, "has not responded yet")
	b.exchange(listenerType, "")
	b.expect("the first Envoy", 10, 0, "ok ")
	b.exchange(listenerType, "listener x: no")
	b.expect("rejected update", 10, 0, "ok continues with the last accepted one: listener x: no")

	b.markEnvoyDisconnected()
	b.now = b.now.Add(time.Minute)
	b.connect(11)
	if s := b.types[listenerType].state(); s != StateRequested {
		t.Errorf("the state of listeners is %q for an Envoy that has none", s)
	}
	b.expect("restarted Envoy", 11, 0, "has not responded yet")
	restarted := b.now
	b.exchange(listenerType, "listener x: no")
	b.now = b.now.Add(time.Minute)
	b.exchange(listenerType, "listener x: still no")
	b.expect("it has nothing to go by", 11, 0, "rejected its first Listener configuration: listener x: still no")
	if c := b.condition(11, 0); !c.Since.Equal(restarted) {
		t.Errorf("since %v, want that of the first rejection, %v", c.Since, restarted)
	}
	b.expect("older Envoy while both run", 10, 0, "ok continues with the last accepted one")
	b.expect("whichever is in force", 0, 0, "rejected its first Listener")
	b.exchange(listenerType, "")
	b.expect("mended", 11, 0, "ok ")

	b.connect(10)
	b.expect("older Envoy served again", 10, 0, "ok continues with the last accepted one")
}

func TestLostControlPlaneMakesUnreadyOnlyAfterLossLimit(t *testing.T) {
	b := newTrackerTest(t)
	b.connect(1)
	b.exchange(clusterType, "")
	lost := b.now.Add(time.Hour)
	b.now = lost
	b.markDisconnected("127.0.0.1:1", errors.New("connection refused"))
	b.now = b.now.Add(time.Minute)
	const why = "not connected to the control plane 127.0.0.1:1: connection refused; last accepted configuration 1m0s old"
	b.expect("by default", 1, 0, "ok "+why)
	b.expect("before the limit", 1, 61*time.Second, "ok "+why)
	b.expect("from the limit on", 1, time.Minute, why)
	if c := b.condition(1, time.Minute); !c.Since.Equal(lost) {
		t.Errorf("since %v, want %v", c.Since, lost)
	}
	b.markConnected("127.0.0.1:1")
	b.expect("found again", 1, time.Minute, "ok ")
}

func TestStatesOfEndedEnvoysAreLimited(t *testing.T) {
	b := newTrackerTest(t)
	for process := range int32(1000) {
		b.connect(process)
		b.exchange(clusterType, "")
		b.expect("in force", process, 0, "ok ")
	}
	if n := len(b.envoys); n > maxProcesses {
		t.Errorf("%d Envoy states are recorded", n)
	}
}
