package logging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// envoyLogTimeout is the maximum wait for an unresponsive Envoy, for example during Envoy's start.
	envoyLogTimeout      = 3 * time.Second
	envoyLogPollInterval = 100 * time.Millisecond
	// minResetRetry is the delay before the first retry of a failed reset. It doubles with each of at most
	// maxResetRetries retries.
	minResetRetry   = time.Second
	maxResetRetries = 8
	// maxLogChange is the maximum time for which a request may change levels.
	maxLogChange = 7 * 24 * time.Hour
)

// EnvoyLog is the log level API of Envoy's admin interface.
type EnvoyLog interface {
	LogLevels(context.Context) (map[string]string, error)
	SetLogLevel(ctx context.Context, level string) error
}

// unavailableError reports that Envoy's admin interface does not respond now.
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error { return e.error }

// HTTPStatus returns the status of the response to the client that requested the change.
func (unavailableError) HTTPStatus() int { return http.StatusServiceUnavailable }

// LevelRequest changes log levels for a limited or unlimited time. An empty request changes nothing and returns the
// levels.
type LevelRequest struct {
	Agent string        `json:"agent,omitempty"` // syntax of --log_output_level
	Envoy string        `json:"envoy,omitempty"` // syntax of --proxyLogLevel
	For   time.Duration `json:"for,omitempty"`   // 0: until the agent exits
	Reset bool          `json:"reset,omitempty"` // restore the initial levels
}

// LevelReport lists the current levels.
type LevelReport struct {
	Agent string `json:"agent,omitempty"`
	Envoy string `json:"envoy,omitempty"`
	// Changed reports whether the levels differ from the initial ones. Until is the time of the reset.
	Changed bool       `json:"changed"`
	Until   *time.Time `json:"until,omitempty"`
	// Problem is the reason why Envoy's levels are unknown.
	Problem string `json:"problem,omitempty"`
}

// LevelController changes the log levels of the agent and Envoy at run time, and resets them after the requested time.
// One goroutine processes all requests in order.
type LevelController struct {
	log    *Log // if nil, the agent's own levels cannot be changed
	logger *slog.Logger
	envoy  func() EnvoyLog // returns nil while no Envoy runs
	start  EnvoyLevels

	// override holds Envoy's levels while they differ from the initial ones. A restarted Envoy starts with them.
	override atomic.Pointer[EnvoyLevels]
	requests chan func(context.Context)
	timer    *time.Timer
	until    time.Time
	tries    int
}

// NewLevelController returns a controller for the levels of log and of the Envoy that the function envoy returns. If
// log is nil, the agent's own levels cannot be changed. start are Envoy's initial levels.
func NewLevelController(log *Log, logger *slog.Logger, start EnvoyLevels, envoy func() EnvoyLog) *LevelController {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &LevelController{log: log, logger: logger.With("part", "control"), envoy: envoy, start: start,
		requests: make(chan func(context.Context)), timer: timer}
}

// StartLevels returns the levels with which to start an Envoy: the override if there is one, otherwise level and
// components.
func (l *LevelController) StartLevels(level, components string) (string, string) {
	if wanted := l.override.Load(); wanted != nil {
		return wanted.String(), ""
	}
	return level, components
}

// Run handles requests until ctx ends. It resets the levels when the time of a change has passed.
func (l *LevelController) Run(ctx context.Context) error {
	defer l.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-l.requests:
			do(ctx)
		case <-l.timer.C:
			l.reset(ctx)
		}
	}
}

// Handle passes a request to the controller's goroutine and waits for the result.
func (l *LevelController) Handle(ctx context.Context, o LevelRequest) (report LevelReport, err error) {
	done := make(chan struct{})
	do := func(running context.Context) {
		defer close(done)
		report, err = l.change(running, o)
	}
	select {
	case l.requests <- do:
		<-done
		return report, err
	case <-ctx.Done():
		return report, ctx.Err()
	}
}

func (l *LevelController) change(ctx context.Context, o LevelRequest) (LevelReport, error) {
	if o.Reset {
		l.reset(ctx)
		return l.buildReport(ctx), nil
	}
	if o.Agent == "" && o.Envoy == "" {
		return l.buildReport(ctx), nil
	}
	if o.For < 0 || o.For > maxLogChange {
		return LevelReport{}, fmt.Errorf("for %v: choose a duration up to %v, or 0 for no limit", o.For, maxLogChange)
	}
	change, all, err := l.checkAgent(o.Agent)
	if err != nil {
		return LevelReport{}, err
	}
	if err := l.changeEnvoy(ctx, o.Envoy); err != nil {
		return LevelReport{}, err
	}
	if o.Agent != "" {
		merged := l.log.levels.Load().merge(change, all)
		l.log.levels.Store(&merged)
	}
	l.scheduleReset(o.For)
	l.logger.Info("log levels changed", "agent", o.Agent, "envoy", o.Envoy, "for", o.For)
	return l.buildReport(ctx), nil
}

func (l *LevelController) scheduleReset(d time.Duration) {
	l.tries, l.until = 0, time.Time{}
	l.timer.Stop()
	if d > 0 {
		l.until = time.Now().Add(d)
		l.timer.Reset(d)
	}
}

// checkAgent parses text, the requested levels of the agent's own log. all reports whether text contains a level for
// all components. checkAgent fails if a component is unknown.
func (l *LevelController) checkAgent(text string) (change levelSet, all bool, err error) {
	if text == "" {
		return change, false, nil
	}
	if l.log == nil {
		return change, false, errors.New("this agent does not support changes of its own log levels")
	}
	change, all, err = parseLevelChange("agent", text)
	known := l.log.componentNames()
	for _, part := range slices.Sorted(maps.Keys(change.components)) {
		if err == nil && !l.log.hasComponent(part) {
			err = fmt.Errorf("agent: unknown component %q%s; use one of %v", part, orDidYouMean(part, known), known)
		}
	}
	return change, all, err
}

// changeEnvoy sets Envoy's log levels. It checks component names, because Envoy ignores unknown ones.
func (l *LevelController) changeEnvoy(ctx context.Context, text string) error {
	if text == "" {
		return nil
	}
	change, err := ParseEnvoyLevels("envoy", text)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, envoyLogTimeout)
	defer cancel()
	levels, err := l.readEnvoyLevels(ctx)
	if err != nil {
		return unavailableError{fmt.Errorf("Envoy's log levels cannot be changed: %w", err)}
	}
	for _, component := range slices.Sorted(maps.Keys(change.components)) {
		if _, ok := levels[component]; !ok {
			return fmt.Errorf("envoy: unknown component %q%s; `pilotfish-agent request POST logging` lists them",
				component, orDidYouMean(component, slices.Sorted(maps.Keys(levels))))
		}
	}
	from := l.start
	if wanted := l.override.Load(); wanted != nil {
		from = *wanted
	}
	// Store the override before the call, so that an Envoy that starts meanwhile uses the new levels too.
	wanted := from.merge(change)
	l.override.Store(&wanted)
	return l.setEnvoyLevels(ctx, change)
}

// readEnvoyLevels reads Envoy's levels. It retries until ctx ends.
func (l *LevelController) readEnvoyLevels(ctx context.Context) (map[string]string, error) {
	for {
		envoy := l.envoy()
		if envoy == nil {
			return nil, errors.New("no Envoy is running")
		}
		levels, err := envoy.LogLevels(ctx)
		if err == nil {
			return levels, nil
		}
		select {
		case <-time.After(envoyLogPollInterval):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (l *LevelController) setEnvoyLevels(ctx context.Context, levels EnvoyLevels) error {
	envoy := l.envoy()
	if envoy == nil {
		return nil // the next Envoy starts with the override
	}
	for _, call := range levels.adminLevels() {
		if err := envoy.SetLogLevel(ctx, call); err != nil {
			return err
		}
	}
	return nil
}

// reset restores the initial levels. If Envoy does not respond, reset schedules a retry.
func (l *LevelController) reset(ctx context.Context) {
	l.timer.Stop()
	l.until = time.Time{}
	if l.log != nil {
		l.log.levels.Store(&l.log.initial)
	}
	if l.override.Load() == nil {
		l.logger.Info("initial log levels restored")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, envoyLogTimeout)
	defer cancel()
	switch err := l.setEnvoyLevels(ctx, l.start); {
	case err == nil:
		l.override.Store(nil)
		l.logger.Info("initial log levels restored")
	case l.tries < maxResetRetries:
		l.override.Store(&l.start) // for an Envoy that starts meanwhile
		l.timer.Reset(minResetRetry << l.tries)
		l.tries++
	default:
		l.override.Store(nil) // the next Envoy starts with the initial levels
		l.logger.Error("cannot restore Envoy's log levels; set them with the command `log`", "error", err)
	}
}

func (l *LevelController) buildReport(ctx context.Context) LevelReport {
	var r LevelReport
	if l.log != nil {
		r.Agent = l.log.levels.Load().String()
		r.Changed = r.Agent != l.log.initial.String()
	}
	r.Changed = r.Changed || l.override.Load() != nil
	if !l.until.IsZero() {
		r.Until = &l.until
	}
	ctx, cancel := context.WithTimeout(ctx, envoyLogTimeout)
	defer cancel()
	levels, err := l.readEnvoyLevels(ctx)
	if err != nil {
		r.Problem = err.Error()
		return r
	}
	r.Envoy = summarizeLevels(levels).String()
	return r
}
