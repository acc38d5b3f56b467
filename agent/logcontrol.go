package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// envoyLogTime is how long an order waits for an Envoy that does not answer, as one that has just been started.
	envoyLogTime = 3 * time.Second
	envoyLogPoll = 100 * time.Millisecond
	// resetRetry is how soon levels are set back that Envoy did not take; it doubles, resetTries times at most.
	resetRetry = time.Second
	resetTries = 8
	// longestLogChange bounds how long levels are changed for.
	longestLogChange = 7 * 24 * time.Hour
)

// envoyLog is what an Envoy's admin interface offers for its log.
type envoyLog interface {
	LogLevels(context.Context) (map[string]string, error)
	SetLogLevel(ctx context.Context, level string) error
}

// logOrder asks for levels for some time. Without any it asks what they are.
type logOrder struct {
	Agent string        `json:"agent,omitempty"` // as --log_output_level
	Envoy string        `json:"envoy,omitempty"` // as --proxyLogLevel
	For   time.Duration `json:"for,omitempty"`   // 0: until the agent ends
	Reset bool          `json:"reset,omitempty"` // back to the levels of the start
}

// logReport tells the levels that are in force.
type logReport struct {
	Agent string `json:"agent,omitempty"`
	Envoy string `json:"envoy,omitempty"`
	// Changed is whether they differ from those of the start, and Until when they go back to those.
	Changed bool       `json:"changed"`
	Until   *time.Time `json:"until,omitempty"`
	// Problem says why Envoy's levels are not known.
	Problem string `json:"problem,omitempty"`
}

// logControl changes what agent and Envoy log while they run, and takes it back when its time is over. One goroutine does
// all of it, in turn.
type logControl struct {
	log    *Log // nil: the agent's own levels cannot be changed
	logger *slog.Logger
	envoy  func() envoyLog // gives nil while no Envoy runs
	start  envoyLevels

	// wanted are Envoy's levels while they differ from those of the start. An Envoy that is started then gets them.
	wanted atomic.Pointer[envoyLevels]
	orders chan func(context.Context)
	timer  *time.Timer
	until  time.Time
	tries  int
}

func newLogControl(log *Log, logger *slog.Logger, start envoyLevels, envoy func() envoyLog) *logControl {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &logControl{log: log, logger: logger.With("part", "control"), envoy: envoy, start: start,
		orders: make(chan func(context.Context)), timer: timer}
}

func (l *logControl) part() part { return part{name: "log levels", run: l.run, restart: true} }

// flags are the levels that an Envoy is started with: those of the command line, or those that are wanted for now.
func (l *logControl) flags(level, components string) (string, string) {
	if wanted := l.wanted.Load(); wanted != nil {
		return wanted.String(), ""
	}
	return level, components
}

func (l *logControl) run(ctx context.Context) error {
	defer l.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-l.orders:
			do(ctx)
		case <-l.timer.C:
			l.takeBack(ctx)
		}
	}
}

// order has an order carried out by the one goroutine.
func (l *logControl) order(ctx context.Context, o logOrder) (report logReport, err error) {
	done := make(chan struct{})
	do := func(running context.Context) {
		defer close(done)
		report, err = l.change(running, o)
	}
	select {
	case l.orders <- do:
		<-done
		return report, err
	case <-ctx.Done():
		return report, ctx.Err()
	}
}

func (l *logControl) change(ctx context.Context, o logOrder) (logReport, error) {
	if o.Reset {
		l.takeBack(ctx)
		return l.report(ctx), nil
	}
	if o.Agent == "" && o.Envoy == "" {
		return l.report(ctx), nil
	}
	if o.For < 0 || o.For > longestLogChange {
		return logReport{}, fmt.Errorf("for %v: choose a time up to %v, or 0 to keep the levels until the agent ends", o.For, longestLogChange)
	}
	change, all, err := l.checkAgent(o.Agent)
	if err != nil {
		return logReport{}, err
	}
	if err := l.changeEnvoy(ctx, o.Envoy); err != nil {
		return logReport{}, err
	}
	if o.Agent != "" {
		merged := l.log.levels.Load().with(change, all)
		l.log.levels.Store(&merged)
	}
	l.keepFor(o.For)
	l.logger.Info("log levels changed", "agent", o.Agent, "envoy", o.Envoy, "for", o.For)
	return l.report(ctx), nil
}

func (l *logControl) keepFor(d time.Duration) {
	l.tries, l.until = 0, time.Time{}
	l.timer.Stop()
	if d > 0 {
		l.until = time.Now().Add(d)
		l.timer.Reset(d)
	}
}

// checkAgent reads levels of the agent's own log; the parts that they name have to be there.
func (l *logControl) checkAgent(text string) (change levelSet, all bool, err error) {
	if text == "" {
		return change, false, nil
	}
	if l.log == nil {
		return change, false, errors.New("the levels of this agent's own log cannot be changed")
	}
	change, all, err = parseLevelChange("agent", text)
	known := l.log.known()
	for _, part := range sortedKeys(change.parts) {
		if err == nil && !l.log.has(part) {
			err = fmt.Errorf("agent: no part is called %q%s; there are %v", part, orDidYouMean(part, known), known)
		}
	}
	return change, all, err
}

// changeEnvoy sets levels of Envoy's log. Names of components are checked, since Envoy passes over unknown ones.
func (l *logControl) changeEnvoy(ctx context.Context, text string) error {
	if text == "" {
		return nil
	}
	change, err := parseEnvoyLevels("envoy", text)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, envoyLogTime)
	defer cancel()
	levels, err := l.ask(ctx)
	if err != nil {
		return refusal{fmt.Errorf("Envoy's levels are as they were: %w", err), http.StatusServiceUnavailable}
	}
	for _, component := range sortedKeys(change.components) {
		if _, ok := levels[component]; !ok {
			return fmt.Errorf("envoy: no component is called %q%s; `pilotfish-agent request POST logging` lists them",
				component, orDidYouMean(component, sortedKeys(levels)))
		}
	}
	from := l.start
	if wanted := l.wanted.Load(); wanted != nil {
		from = *wanted
	}
	// Known before it is done, so that an Envoy that takes the place of this one meanwhile has them too.
	wanted := from.with(change)
	l.wanted.Store(&wanted)
	return l.set(ctx, change)
}

// ask asks Envoy for its levels, and waits for one that is about to answer.
func (l *logControl) ask(ctx context.Context) (map[string]string, error) {
	for {
		envoy := l.envoy()
		if envoy == nil {
			return nil, errors.New("no Envoy runs now")
		}
		levels, err := envoy.LogLevels(ctx)
		if err == nil || !sleep(ctx, envoyLogPoll) {
			return levels, err
		}
	}
}

func (l *logControl) set(ctx context.Context, levels envoyLevels) error {
	envoy := l.envoy()
	if envoy == nil {
		return nil // the next one is started with what is wanted
	}
	for _, call := range levels.calls() {
		if err := envoy.SetLogLevel(ctx, call); err != nil {
			return err
		}
	}
	return nil
}

// takeBack sets the levels of the start again. An Envoy that does not answer is asked again later.
func (l *logControl) takeBack(ctx context.Context) {
	l.timer.Stop()
	l.until = time.Time{}
	if l.log != nil {
		l.log.levels.Store(&l.log.initial)
	}
	if l.wanted.Load() == nil {
		l.logger.Info("log levels are those of the start again")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, envoyLogTime)
	defer cancel()
	switch err := l.set(ctx, l.start); {
	case err == nil:
		l.wanted.Store(nil)
		l.logger.Info("log levels are those of the start again")
	case l.tries < resetTries:
		l.wanted.Store(&l.start) // for an Envoy that is started meanwhile
		l.timer.Reset(resetRetry << l.tries)
		l.tries++
	default:
		l.wanted.Store(nil) // at least the next Envoy has them
		l.logger.Error("Envoy's log levels could not be set back; set them with the command `log`", "error", err)
	}
}

func (l *logControl) report(ctx context.Context) logReport {
	var r logReport
	if l.log != nil {
		r.Agent = l.log.levels.Load().String()
		r.Changed = r.Agent != l.log.initial.String()
	}
	r.Changed = r.Changed || l.wanted.Load() != nil
	if !l.until.IsZero() {
		r.Until = &l.until
	}
	ctx, cancel := context.WithTimeout(ctx, envoyLogTime)
	defer cancel()
	levels, err := l.ask(ctx)
	if err != nil {
		r.Problem = err.Error()
		return r
	}
	r.Envoy = summary(levels).String()
	return r
}
