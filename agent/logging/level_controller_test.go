package logging

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeEnvoyLog is a fake of Envoy's log with two components.
type fakeEnvoyLog struct {
	mu     sync.Mutex
	levels map[string]string
	broken error
}

func (f *fakeEnvoyLog) LogLevels(context.Context) (map[string]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	got := map[string]string{}
	for k, v := range f.levels {
		got[k] = v
	}
	return got, f.broken
}

func (f *fakeEnvoyLog) SetLogLevel(_ context.Context, level string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return f.broken
	}
	for entry := range strings.SplitSeq(level, ",") {
		component, name, scoped := strings.Cut(entry, ":")
		if scoped {
			f.levels[component] = name
			continue
		}
		for c := range f.levels {
			f.levels[c] = entry
		}
	}
	return nil
}

func (f *fakeEnvoyLog) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = err
}

// startLevels runs a LevelController with a fake Envoy in virtual time.
func startLevels(t *testing.T) (*LevelController, *fakeEnvoyLog, func()) {
	log, _ := openLog(t)
	log.With("part", "xds")
	envoy := &fakeEnvoyLog{levels: map[string]string{"http": "warning", "router": "warning", "upstream": "error"}}
	start, err := ParseEnvoyLevels("", "warning,upstream:error")
	if err != nil {
		t.Fatal(err)
	}
	l := NewLevelController(log, log.Logger, start, func() EnvoyLog { return envoy })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { _ = l.Run(ctx); close(done) }()
	return l, envoy, func() { cancel(); <-done }
}

func (l *LevelController) mustHandle(t *testing.T, o LevelRequest) LevelReport {
	t.Helper()
	r, err := l.Handle(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLogLevelsResetAutomatically(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := startLevels(t)
		defer stop()
		r := l.mustHandle(t, LevelRequest{Agent: "debug", Envoy: "info,http:debug", For: 5 * time.Minute})
		if r.Agent != "debug" || r.Envoy != "info,http:debug" || !r.Changed || r.Until == nil {
			t.Errorf("after the change: %+v", r)
		}
		if level, components := l.StartLevels("warning", "upstream:error"); level != "info,http:debug" || components != "" {
			t.Errorf("an Envoy that is started now gets %q, %q", level, components)
		}
		time.Sleep(4 * time.Minute)
		if r := l.mustHandle(t, LevelRequest{}); r.Agent != "debug" {
			t.Errorf("after 4 minutes: %+v", r)
		}
		time.Sleep(time.Minute + time.Second)
		r = l.mustHandle(t, LevelRequest{})
		if r.Agent != "info" || r.Envoy != "warning,upstream:error" || r.Changed || r.Until != nil {
			t.Errorf("after 5 minutes: %+v", r)
		}
		if level, components := l.StartLevels("warning", "upstream:error"); level != "warning" || components != "upstream:error" {
			t.Errorf("an Envoy that is started now gets %q, %q", level, components)
		}
	})
}

func TestLogLevelChangesAccumulate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := startLevels(t)
		defer stop()
		l.mustHandle(t, LevelRequest{Envoy: "http:debug", Agent: "xds:debug", For: time.Minute})
		r := l.mustHandle(t, LevelRequest{Envoy: "router:trace", For: time.Hour})
		if r.Envoy != "debug,router:trace,upstream:error" && r.Envoy != "error,http:debug,router:trace" && r.Envoy != "trace,http:debug,upstream:error" {
			t.Errorf("Envoy: %s", r.Envoy)
		}
		time.Sleep(2 * time.Minute)
		if r := l.mustHandle(t, LevelRequest{}); r.Agent != "info,xds:debug" || !r.Changed {
			t.Errorf("after the first time: %+v", r)
		}
		if r := l.mustHandle(t, LevelRequest{Reset: true}); r.Agent != "info" || r.Envoy != "warning,upstream:error" || r.Changed {
			t.Errorf("after --reset: %+v", r)
		}
	})
}

func TestFailedLogLevelResetIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, envoy, stop := startLevels(t)
		defer stop()
		l.mustHandle(t, LevelRequest{Envoy: "debug", For: time.Minute})
		envoy.fail(errors.New("frozen"))
		time.Sleep(time.Minute + time.Second)
		if level, _ := l.StartLevels("", ""); level != "warning,upstream:error" {
			t.Errorf("an Envoy that is started now gets %q", level)
		}
		envoy.fail(nil)
		time.Sleep(time.Minute)
		if r := l.mustHandle(t, LevelRequest{}); r.Envoy != "warning,upstream:error" || r.Changed {
			t.Errorf("after Envoy responds again: %+v", r)
		}
	})
}

func TestInvalidLogRequestChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, envoy, stop := startLevels(t)
		defer stop()
		for want, o := range map[string]LevelRequest{
			"did you mean debug": {Agent: "debgu"},
			"did you mean xds":   {Agent: "debug,xsd:debug"},
			"use one of trace":   {Agent: "debug", Envoy: "loud"},
			"did you mean http":  {Agent: "debug", Envoy: "htp:debug"},
			"choose a duration":  {Agent: "debug", For: -time.Second},
			"up to":              {Agent: "debug", For: 1000 * time.Hour},
		} {
			if _, err := l.Handle(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: error %v, want %q", o, err, want)
			}
		}
		envoy.fail(errors.New("frozen"))
		if _, err := l.Handle(t.Context(), LevelRequest{Agent: "debug", Envoy: "debug"}); err == nil || !strings.Contains(err.Error(), "frozen") {
			t.Errorf("error %v", err)
		}
		if r := l.mustHandle(t, LevelRequest{}); r.Changed || r.Agent != "info" || !strings.Contains(r.Problem, "frozen") {
			t.Errorf("after invalid requests: %+v", r)
		}
	})
}

func FuzzLogLevels(f *testing.F) {
	for _, seed := range []string{"", "info", "default:info", "default:warn,xds:debug", "all:none", "warning,upstream:debug,http:trace", ":", ",,", "a:b:c", "off,x:off"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseLevels("flag", text); err == nil {
			again, err := parseLevels("flag", s.String())
			if err != nil || again.String() != s.String() {
				t.Errorf("%q: %q is read as %q, %v", text, s, again, err)
			}
		}
		if l, err := ParseEnvoyLevels("flag", text); err == nil {
			again, err := ParseEnvoyLevels("flag", l.String())
			if err != nil || again.String() != l.String() {
				t.Errorf("%q: %q is read as %q, %v", text, l, again, err)
			}
		}
	})
}
