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

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

const (
	// statusQueryTimeout is the timeout of a request to the agent's own status port.
	statusQueryTimeout = 5 * time.Second
	// minReadyPollInterval is the first interval between readiness checks during startup. It doubles up to
	// maxReadyPollInterval.
	minReadyPollInterval = 50 * time.Millisecond
	maxReadyPollInterval = time.Second
	// statusInterval is the interval between updates of the status line after startup.
	statusInterval = 30 * time.Second
	// stopMargin is added to the shutdown deadline; the sum is sent to systemd as the stop timeout.
	stopMargin = 5 * time.Second
)

// systemdNotifier notifies systemd of readiness, status, liveness (watchdog) and stop of the agent.
type systemdNotifier struct {
	send        func(state string) error
	query       func(ctx context.Context, path string) (ok bool, answer string)
	watchdog    time.Duration // watchdog timeout; 0 if disabled
	maxStopTime time.Duration // maximum duration of the shutdown
	logger      *slog.Logger

	lastStatus string // last status line sent
}

// newSystemdNotifier returns a notifier for the service manager that started the agent. It returns nil if there is
// none.
func newSystemdNotifier(a *Agent) *systemdNotifier {
	if sent, err := daemon.SdNotify(false, "STATUS=starting"); !sent {
		if err != nil {
			a.Logger.Warn("cannot notify the service manager; check NOTIFY_SOCKET", "error", err)
		}
		return nil
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		a.Logger.Warn("the watchdog of the service manager is disabled, because WATCHDOG_USEC or WATCHDOG_PID is not a number", "error", err)
	}
	return &systemdNotifier{
		send:        func(state string) error { _, err := daemon.SdNotify(false, state); return err },
		query:       a.queryStatus,
		watchdog:    watchdog,
		maxStopTime: a.Config.Shutdown.Deadline + stopMargin,
		logger:      a.Logger.With("part", "service"),
	}
}

// queryStatus requests path from the agent's own status port, as other clients do. An agent whose status port does not
// respond is thus not reported as alive.
func (a *Agent) queryStatus(ctx context.Context, path string) (ok bool, answer string) {
	client := a.StatusClient(statusQueryTimeout)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.StatusURL(path), nil)
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

// NotifySystemd sends notifications to systemd until the caller calls stop with the result of Run. ctx ends when the
// shutdown begins.
func (a *Agent) NotifySystemd(ctx context.Context) (stop func(error)) {
	s := newSystemdNotifier(a)
	if s == nil {
		return func(error) {}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { defer close(done); s.run(running, ctx.Done()) }()
	return func(err error) {
		cancel()
		<-done
		s.notifyEnded(err)
	}
}

// run sends notifications until ctx ends. stopping is closed when the shutdown begins.
func (s *systemdNotifier) run(ctx context.Context, stopping <-chan struct{}) {
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
			s.notifyStopping()
		case <-t.C:
		}
		ready = s.heartbeat(ctx, ready, stopping == nil)
		wait = s.nextInterval(wait, ready || stopping == nil)
	}
}

// nextInterval returns the time until the next heartbeat. last is the previous interval.
func (s *systemdNotifier) nextInterval(last time.Duration, started bool) time.Duration {
	period := statusInterval
	if !started {
		period = min(max(2*last, minReadyPollInterval), maxReadyPollInterval)
	}
	if s.watchdog > 0 {
		period = min(period, s.watchdog/3)
	}
	return period
}

// heartbeat checks liveness and readiness and notifies systemd. It returns true if the agent is ready now, or if ready
// is true already: systemd is notified of the first readiness only.
func (s *systemdNotifier) heartbeat(ctx context.Context, ready, stopping bool) bool {
	if s.watchdog > 0 {
		if ok, why := s.query(ctx, "/healthz/live"); ok {
			s.notify("WATCHDOG=1")
		} else if ctx.Err() == nil {
			s.logger.Error("the agent's liveness check fails; the watchdog of the service manager will kill the agent", "reason", termtext.ShortLine(why), "timeout", s.watchdog)
		}
	}
	if stopping {
		return ready
	}
	now, why := s.query(ctx, "/healthz/ready")
	switch {
	case ctx.Err() != nil:
	case now && !ready:
		s.notify("READY=1")
		s.setStatus("ready")
		return true
	case now:
		s.setStatus("ready")
	default:
		s.setStatus("not ready: " + strings.TrimPrefix(termtext.ShortLine(why), "not ready "))
	}
	return ready
}

func (s *systemdNotifier) notifyStopping() {
	s.notify(fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", s.maxStopTime.Microseconds()))
	s.setStatus("draining and stopping")
}

// notifyEnded sends the reason of the agent's exit to systemd as the service's status.
func (s *systemdNotifier) notifyEnded(err error) {
	if err == nil {
		s.setStatus("stopped")
		return
	}
	s.setStatus(termtext.ShortLine(err.Error()))
}

// setStatus sends the status line if it has changed. line must not contain line breaks, because systemd would interpret
// a second line as another message.
func (s *systemdNotifier) setStatus(line string) {
	if line != s.lastStatus {
		s.lastStatus = line
		s.notify("STATUS=" + line)
	}
}

func (s *systemdNotifier) notify(state string) {
	if err := s.send(state); err != nil {
		s.logger.Warn("cannot notify the service manager", "state", state, "error", err)
	}
}
