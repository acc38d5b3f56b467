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

// notifySocket is the service manager's end: it gathers what it is told.
type notifySocket struct {
	path string
	conn *net.UnixConn

	mu   sync.Mutex
	told []string
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
			n.told = append(n.told, strings.Split(string(buffer[:size]), "\n")...)
			n.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = n.conn.Close(); <-done })
	return n
}

func (n *notifySocket) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.told)
}

// hears waits until the service manager was told something that begins with the text.
func (n *notifySocket) hears(t *testing.T, text string) {
	t.Helper()
	eventually(t, "the service manager hears "+text, func() error {
		if slices.ContainsFunc(n.all(), func(m string) bool { return strings.HasPrefix(m, text) }) {
			return nil
		}
		return fmt.Errorf("it heard %q", n.all())
	})
}

func TestServiceManagerIsToldOfReadinessLifeAndEnd(t *testing.T) {
	t.Parallel()
	n := listenNotify(t)
	s := newSetup(t, "127.107.41.1")
	s.env = append(s.env, "NOTIFY_SOCKET="+n.path, "WATCHDOG_USEC=300000")
	r := s.start(t)
	n.hears(t, "STATUS=not ready: ")
	n.hears(t, "WATCHDOG=1")
	if slices.Contains(n.all(), "READY=1") {
		t.Errorf("ready without a control plane: %q", n.all())
	}
	s.cp.start(t)
	n.hears(t, "READY=1")
	n.hears(t, "STATUS=ready")
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	n.hears(t, "STATUS=stopped")
	told := n.all()
	stopping := slices.Index(told, "STOPPING=1")
	if stopping < 0 || stopping < slices.Index(told, "READY=1") || !strings.HasPrefix(told[stopping+1], "EXTEND_TIMEOUT_USEC=") {
		t.Errorf("told: %q", told)
	}
}

func TestServiceManagerIsToldWhyTheProxyEnded(t *testing.T) {
	t.Parallel()
	n := listenNotify(t)
	s := newSetup(t, "127.107.42.1")
	s.env = append(s.env, "NOTIFY_SOCKET="+n.path)
	s.cp.start(t)
	r := s.start(t)
	n.hears(t, "READY=1")
	if err := syscall.Kill(r.envoy(), syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	if code := r.exit(); code != 128+11 {
		t.Errorf("exit code %d", code)
	}
	n.hears(t, "STATUS=envoy: Envoy ended: ended by SIGSEGV")
	if slices.Contains(n.all(), "WATCHDOG=1") {
		t.Errorf("the watchdog was told although there is none: %q", n.all())
	}
}

// fakeService gathers what it tells with the time of it, and answers as it is set to.
type fakeService struct {
	service
	mu          sync.Mutex
	start       time.Time
	told        []string
	alive, well bool
}

func newFakeService(watchdog time.Duration) *fakeService {
	f := &fakeService{start: time.Now(), alive: true}
	f.service = service{watchdog: watchdog, stopTime: time.Minute, logger: slog.New(slog.DiscardHandler),
		send: func(state string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.told = append(f.told, fmt.Sprintf("%.0f %s", time.Since(f.start).Seconds(), state))
			return nil
		},
		ask: func(_ context.Context, path string) (bool, string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if path == "/healthz/live" {
				return f.alive, "frozen"
			}
			return f.well, "xds: no\n  control plane"
		}}
	return f
}

func (f *fakeService) set(alive, well bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive, f.well = alive, well
}

func (f *fakeService) count(text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.told {
		if strings.HasSuffix(m, text) {
			n++
		}
	}
	return n
}

func TestWatchdogHearsNothingOfAnAgentThatIsNotAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeService(30 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		stopping, done := make(chan struct{}), make(chan struct{})
		go func() { f.run(ctx, stopping); close(done) }()
		time.Sleep(time.Minute)
		if f.count(" READY=1") != 0 || f.count(" STATUS=not ready: xds: no control plane") != 1 {
			t.Errorf("before it is ready: %q", f.told)
		}
		f.set(true, true)
		time.Sleep(time.Minute)
		before := f.count(" WATCHDOG=1")
		if f.count(" READY=1") != 1 || f.count(" STATUS=ready") != 1 || before == 0 {
			t.Errorf("when it is ready: %q", f.told)
		}
		f.set(false, true)
		time.Sleep(time.Minute)
		if got := f.count(" WATCHDOG=1"); got != before {
			t.Errorf("the watchdog heard %d times of an agent that is not alive", got-before)
		}
		f.set(true, false)
		time.Sleep(time.Minute)
		if got := f.count(" WATCHDOG=1"); got == before || f.count(" STATUS=not ready: xds: no control plane") != 2 || f.count(" READY=1") != 1 {
			t.Errorf("when it came back: %q", f.told)
		}
		close(stopping)
		time.Sleep(time.Minute)
		if f.count(" STOPPING=1\nEXTEND_TIMEOUT_USEC=60000000") != 1 {
			t.Errorf("when it stops: %q", f.told)
		}
		before = f.count(" WATCHDOG=1")
		time.Sleep(time.Minute)
		if f.count(" WATCHDOG=1") == before {
			t.Error("the watchdog hears nothing during a long drain")
		}
		cancel()
		<-done
		f.ended(errors.New("two\nlines"))
		if f.count(" STATUS=two lines") != 1 {
			t.Errorf("at the end: %q", f.told)
		}
	})
}

func TestServiceWithoutAWatchdogIsAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeService(0)
		asked := 0
		ask := f.service.ask
		f.service.ask = func(ctx context.Context, path string) (bool, string) { asked++; return ask(ctx, path) }
		f.set(true, true)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { f.run(ctx, nil); close(done) }()
		time.Sleep(time.Hour)
		cancel()
		<-done
		if asked > 125 {
			t.Errorf("asked %d times in an hour", asked)
		}
	})
}
