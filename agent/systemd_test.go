package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// notifySocket is the socket of a fake service manager. It collects the messages.
type notifySocket struct {
	path string
	conn *net.UnixConn

	mu       sync.Mutex
	received []string
}

func listenNotify(t *testing.T) *notifySocket {
	t.Helper()
	n := &notifySocket{path: filepath.Join(t.TempDir(), "notify")}
	var err error
	if n.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 4096)
		for {
			size, err := n.conn.Read(buffer)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.received = append(n.received, strings.Split(string(buffer[:size]), "\n")...)
			n.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = n.conn.Close(); <-done })
	return n
}

func (n *notifySocket) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.received)
}

// waitMessage waits for a message with the prefix text.
func (n *notifySocket) waitMessage(t *testing.T, text string) {
	t.Helper()
	eventually(t, "the service manager hears "+text, func() error {
		if slices.ContainsFunc(n.all(), func(m string) bool { return strings.HasPrefix(m, text) }) {
			return nil
		}
		return fmt.Errorf("received %q", n.all())
	})
}

func TestSystemdIsNotifiedOfReadinessLivenessAndStop(t *testing.T) {
	t.Parallel()
	n := listenNotify(t)
	s := newSetup(t, "127.107.41.1")
	s.env = append(s.env, "NOTIFY_SOCKET="+n.path, "WATCHDOG_USEC=300000")
	r := s.start(t)
	n.waitMessage(t, "STATUS=not ready: ")
	n.waitMessage(t, "WATCHDOG=1")
	if slices.Contains(n.all(), "READY=1") {
		t.Errorf("ready without a control plane: %q", n.all())
	}
	s.cp.start(t)
	n.waitMessage(t, "READY=1")
	n.waitMessage(t, "STATUS=ready")
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
	n.waitMessage(t, "STATUS=stopped")
	messages := n.all()
	stopping := slices.Index(messages, "STOPPING=1")
	if stopping < 0 || stopping < slices.Index(messages, "READY=1") || !strings.HasPrefix(messages[stopping+1], "EXTEND_TIMEOUT_USEC=") {
		t.Errorf("messages: %q", messages)
	}
}

func TestSystemdStatusHasReasonOfExit(t *testing.T) {
	t.Parallel()
	n := listenNotify(t)
	s := newSetup(t, "127.107.42.1")
	s.env = append(s.env, "NOTIFY_SOCKET="+n.path)
	s.cp.start(t)
	r := s.start(t)
	n.waitMessage(t, "READY=1")
	killProcess(t, r.envoy(), syscall.SIGSEGV)
	r.expectExit(128 + 11)
	n.waitMessage(t, "STATUS=envoy: Envoy ended: ended by SIGSEGV")
	if slices.Contains(n.all(), "WATCHDOG=1") {
		t.Errorf("the watchdog was notified although it is disabled: %q", n.all())
	}
}

// fakeSystemd records the notifications with their times, and returns configurable health.
type fakeSystemd struct {
	systemdNotifier
	mu          sync.Mutex
	start       time.Time
	sent        []string
	alive, well bool
}

func newFakeSystemd(watchdog time.Duration) *fakeSystemd {
	f := &fakeSystemd{start: time.Now(), alive: true}
	f.systemdNotifier = systemdNotifier{watchdog: watchdog, maxStopTime: time.Minute, logger: slog.New(slog.DiscardHandler),
		send: func(state string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.sent = append(f.sent, fmt.Sprintf("%.0f %s", time.Since(f.start).Seconds(), state))
			return nil
		},
		query: func(_ context.Context, path string) (bool, string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if path == "/healthz/live" {
				return f.alive, "frozen"
			}
			return f.well, "xds: no\n  control plane"
		}}
	return f
}

func (f *fakeSystemd) set(alive, well bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive, f.well = alive, well
}

func (f *fakeSystemd) count(text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.sent {
		if strings.HasSuffix(m, text) {
			n++
		}
	}
	return n
}

func TestWatchdogIsNotNotifiedByDeadAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSystemd(30 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		stopping, done := make(chan struct{}), make(chan struct{})
		go func() { f.run(ctx, stopping); close(done) }()
		time.Sleep(time.Minute)
		if f.count(" READY=1") != 0 || f.count(" STATUS=not ready: xds: no control plane") != 1 {
			t.Errorf("before it is ready: %q", f.sent)
		}
		f.set(true, true)
		time.Sleep(time.Minute)
		before := f.count(" WATCHDOG=1")
		if f.count(" READY=1") != 1 || f.count(" STATUS=ready") != 1 || before == 0 {
			t.Errorf("when it is ready: %q", f.sent)
		}
		f.set(false, true)
		time.Sleep(time.Minute)
		if got := f.count(" WATCHDOG=1"); got != before {
			t.Errorf("the watchdog was notified %d times for an agent that is not alive", got-before)
		}
		f.set(true, false)
		time.Sleep(time.Minute)
		if got := f.count(" WATCHDOG=1"); got == before || f.count(" STATUS=not ready: xds: no control plane") != 2 || f.count(" READY=1") != 1 {
			t.Errorf("when it came back: %q", f.sent)
		}
		close(stopping)
		time.Sleep(time.Minute)
		if f.count(" STOPPING=1\nEXTEND_TIMEOUT_USEC=60000000") != 1 {
			t.Errorf("when it stops: %q", f.sent)
		}
		before = f.count(" WATCHDOG=1")
		time.Sleep(time.Minute)
		if f.count(" WATCHDOG=1") == before {
			t.Error("the watchdog is not notified during a long drain")
		}
		cancel()
		<-done
		f.notifyEnded(errors.New("two\nlines"))
		if f.count(" STATUS=two lines") != 1 {
			t.Errorf("at the end: %q", f.sent)
		}
	})
}

func TestStatusIsPolledRarelyWithoutWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSystemd(0)
		asked := 0
		ask := f.systemdNotifier.query
		f.systemdNotifier.query = func(ctx context.Context, path string) (bool, string) { asked++; return ask(ctx, path) }
		f.set(true, true)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { f.run(ctx, nil); close(done) }()
		time.Sleep(time.Hour)
		cancel()
		<-done
		if asked > 125 {
			t.Errorf("polled %d times in an hour", asked)
		}
	})
}
