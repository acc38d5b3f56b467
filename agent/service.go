package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const (
	// serviceAsk bounds one question to the agent's own status port.
	serviceAsk = 5 * time.Second
	// readyPoll is how soon readiness is asked for again while the agent starts; it doubles up to readyPollMost.
	readyPoll     = 50 * time.Millisecond
	readyPollMost = time.Second
	// statusPeriod is how often the status line is brought up to date afterwards.
	statusPeriod = 30 * time.Second
	// stopSpare is added to the time that the agent takes to stop at most, for what comes after its last deadline.
	stopSpare = 5 * time.Second
)

// service tells systemd how the agent is: that it is ready, what it waits for, that it is alive, that it ends.
type service struct {
	send     func(state string) error
	ask      func(ctx context.Context, path string) (ok bool, answer string)
	watchdog time.Duration // within which systemd wants to hear that the agent is alive; 0 for never
	stopTime time.Duration // that the agent takes to stop at most
	logger   *slog.Logger

	told string // the last status line
}

// newService gives nil where no service manager listens.
func newService(a *Agent) *service {
	if told, err := daemon.SdNotify(false, "STATUS=starting"); !told {
		if err != nil {
			a.Logger.Warn("the service manager cannot be told how the agent is; look at NOTIFY_SOCKET", "error", err)
		}
		return nil
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		a.Logger.Warn("no watchdog: WATCHDOG_USEC or WATCHDOG_PID is not a number", "error", err)
	}
	return &service{
		send:     func(state string) error { _, err := daemon.SdNotify(false, state); return err },
		ask:      a.askSelf,
		watchdog: watchdog,
		stopTime: a.Config.Shutdown.Deadline + stopSpare,
		logger:   a.Logger.With("part", "service"),
	}
}

// askSelf asks the agent's status port as anybody would, so that an agent that answers nobody is not called alive.
func (a *Agent) askSelf(ctx context.Context, path string) (ok bool, answer string) {
	client := a.statusClient(serviceAsk)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.statusURL(path), nil)
	if err != nil {
		return false, err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return false, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	return response.StatusCode == http.StatusOK, string(text)
}

// tellService keeps the service manager informed until stop is called with what came of the agent. The context ends when
// the agent begins to stop.
func tellService(ctx context.Context, a *Agent) (stop func(error)) {
	s := newService(a)
	if s == nil {
		return func(error) {}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { defer close(done); s.run(running, ctx.Done()) }()
	return func(err error) {
		cancel()
		<-done
		s.ended(err)
	}
}

// run tells until the context ends.
func (s *service) run(ctx context.Context, stopping <-chan struct{}) {
	wait, ready := time.Duration(0), false
	for {
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-stopping:
			t.Stop()
			stopping = nil
			s.stopping()
		case <-t.C:
		}
		ready = s.beat(ctx, ready, stopping == nil)
		wait = s.next(wait, ready || stopping == nil)
	}
}

// next is the time to the next beat.
func (s *service) next(last time.Duration, started bool) time.Duration {
	period := statusPeriod
	if !started {
		period = min(max(2*last, readyPoll), readyPollMost)
	}
	if s.watchdog > 0 {
		period = min(period, s.watchdog/3)
	}
	return period
}

// beat tells whether the agent is ready and alive, and gives whether it has been ready.
func (s *service) beat(ctx context.Context, ready, stopping bool) bool {
	if s.watchdog > 0 {
		if ok, why := s.ask(ctx, "/healthz/live"); ok {
			s.tell("WATCHDOG=1")
		} else if ctx.Err() == nil {
			s.logger.Error("the watchdog is not told that the agent is alive, and will end it", "why", oneLine(why), "within", s.watchdog)
		}
	}
	if stopping {
		return ready
	}
	now, why := s.ask(ctx, "/healthz/ready")
	switch {
	case ctx.Err() != nil:
	case now && !ready:
		s.tell("READY=1")
		s.status("ready")
		return true
	case now:
		s.status("ready")
	default:
		s.status("not ready: " + strings.TrimPrefix(oneLine(why), "not ready "))
	}
	return ready
}

func (s *service) stopping() {
	s.tell(fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", s.stopTime.Microseconds()))
	s.status("draining and stopping")
}

// ended leaves the reason of the end in the service's status.
func (s *service) ended(err error) {
	if err == nil {
		s.status("stopped")
		return
	}
	s.status(oneLine(err.Error()))
}

// status tells the status line when it is another than before.
func (s *service) status(line string) {
	if line != s.told {
		s.told = line
		s.tell("STATUS=" + line)
	}
}

func (s *service) tell(state string) {
	if err := s.send(state); err != nil {
		s.logger.Warn("the service manager was not told", "what", state, "error", err)
	}
}

// oneLine makes a status line of a text, whose lines would be taken for other messages.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 400 {
		text = strings.ToValidUTF8(text[:400], "") + "…"
	}
	return text
}
