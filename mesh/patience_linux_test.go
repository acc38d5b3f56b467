package mesh

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// crowd is a mesh of instances that are ready, of the workloads named.
func crowd(workloads ...string) []*runner {
	m := &Mesh{events: newStream()}
	byName := map[string]*Workload{}
	for _, name := range workloads {
		if byName[name] == nil {
			byName[name] = &Workload{Name: name}
		}
		m.runners = append(m.runners, &runner{mesh: m, ready: true, instance: &Instance{Name: name, workload: byName[name]}})
	}
	return m.runners
}

func TestAnInstanceThatMerelyDoesNotAnswerLeavesOnlyForOthersThatDo(t *testing.T) {
	start := time.Unix(1000, 0)
	mute := sight{silent: true, reasons: []string{"sidecar does not answer"}}
	for name, tc := range map[string]struct {
		workloads []string
		silent    int // the first ones
		lasting   time.Duration
		stays     bool
	}{
		"for a moment":                      {[]string{"a", "a", "b", "c"}, 1, silencePatience - 1, true},
		"with another one of the workload":  {[]string{"a", "a", "b", "c"}, 1, silencePatience, false},
		"the only one of the workload":      {[]string{"a", "b", "c"}, 1, time.Hour, true},
		"all of the workload":               {[]string{"a", "a", "b", "c", "d"}, 2, time.Hour, true},
		"with half of the mesh":             {[]string{"a", "b", "a", "c"}, 2, time.Hour, true},
		"with less than half of the mesh":   {[]string{"a", "b", "a", "c", "d"}, 2, time.Hour, false},
		"the only instance in a whole mesh": {[]string{"a"}, 1, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			all := crowd(tc.workloads...)
			for _, r := range all[:tc.silent] {
				if !r.bears(mute, start) {
					t.Fatal("it is taken out at once")
				}
			}
			if stays := all[0].bears(mute, start.Add(tc.lasting)); stays != tc.stays {
				t.Errorf("it stays: %v, want %v", stays, tc.stays)
			}
		})
	}
}

func TestSilenceBeginsAnewAfterEachAnswer(t *testing.T) {
	r, start := crowd("a", "a", "b")[0], time.Unix(1000, 0)
	mute := sight{silent: true, reasons: []string{"sidecar does not answer"}}
	r.bears(mute, start)
	if r.bears(sight{}, start.Add(time.Second)) {
		t.Error("an answer is borne like silence")
	}
	if !r.bears(mute, start.Add(silencePatience+time.Second)) {
		t.Error("silence from before the answer counts")
	}
	if r.bears(sight{reasons: []string{"sidecar: envoy: DRAINING"}}, start.Add(time.Hour)) {
		t.Error("what the instance says of itself is borne like silence")
	}
}

func TestWhyASilentInstanceStaysIsToldOnce(t *testing.T) {
	r, start := crowd("a", "b")[0], time.Unix(1000, 0)
	told := r.mesh.events.subscribe()
	for n := range 5 {
		r.bears(sight{silent: true, reasons: []string{"sidecar does not answer"}}, start.Add(time.Duration(n)*silencePatience))
	}
	r.mesh.events.close()
	events, _ := told.Next(nil)
	if len(events) != 1 || !strings.Contains(events[0].Line, "stays in service, as no other instance of the workload is there") {
		t.Errorf("told %v", events)
	}
}

func TestAFrozenAgentDoesNotTakeTheOnlyInstanceOutOfTheMesh(t *testing.T) {
	m := bringUp(t, testConfig(t, testTopology(t, oneApp)))
	m.waitReady()
	r := m.snapshotRunners()[0]
	pid := m.Status(context.Background()).Instances[0].Agent.PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	silent := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !r.silence.since.IsZero()
	}
	eventually(t, "that the silence is noticed", silent)
	if ready, reasons, _ := r.state(); !ready || len(reasons) == 0 {
		t.Errorf("it is ready: %v, and said of it is %q", ready, reasons)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answer", func() bool { return !silent() })
	m.soFar(func(events []Event) {
		if slices.ContainsFunc(events, func(e Event) bool { return e.Kind == NotReady }) {
			t.Error("it was taken out meanwhile")
		}
	})
}

// soFar looks at what was told so far.
func (r *running) soFar(look func([]Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	look(r.events)
}
