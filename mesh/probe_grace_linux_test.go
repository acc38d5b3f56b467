package mesh

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// newSilentRunners returns runners of ready instances, one for each of these workload names.
func newSilentRunners(workloads ...string) []*instanceRunner {
	m := &Mesh{events: newEventStream()}
	byName := map[string]*topology.Workload{}
	for _, name := range workloads {
		if byName[name] == nil {
			byName[name] = &topology.Workload{Name: name}
		}
		m.runners = append(m.runners, &instanceRunner{mesh: m, ready: true, instance: &topology.Instance{Name: name, Workload: byName[name]}})
	}
	return m.runners
}

func TestSilentInstanceIsRemovedOnlyIfOthersRespond(t *testing.T) {
	start := time.Unix(1000, 0)
	mute := observation{silent: true, reasons: []string{"sidecar does not answer"}}
	for name, tc := range map[string]struct {
		workloads []string
		silent    int // number of silent instances, which are the first ones
		lasting   time.Duration
		stays     bool
	}{
		"silent for less than silenceTimeout":         {[]string{"a", "a", "b", "c"}, 1, silenceTimeout - 1, true},
		"another instance of the workload responds":   {[]string{"a", "a", "b", "c"}, 1, silenceTimeout, false},
		"the only instance of the workload is silent": {[]string{"a", "b", "c"}, 1, time.Hour, true},
		"all instances of the workload are silent":    {[]string{"a", "a", "b", "c", "d"}, 2, time.Hour, true},
		"half of the mesh is silent":                  {[]string{"a", "b", "a", "c"}, 2, time.Hour, true},
		"less than half of the mesh is silent":        {[]string{"a", "b", "a", "c", "d"}, 2, time.Hour, false},
		"the only instance of the mesh is silent":     {[]string{"a"}, 1, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			all := newSilentRunners(tc.workloads...)
			for _, r := range all[:tc.silent] {
				if !r.toleratesSilence(mute, start) {
					t.Fatal("the instance is removed at once")
				}
			}
			if stays := all[0].toleratesSilence(mute, start.Add(tc.lasting)); stays != tc.stays {
				t.Errorf("the instance counts as ready: %v, want %v", stays, tc.stays)
			}
		})
	}
}

func TestSilenceRestartsAfterEachAnswer(t *testing.T) {
	r, start := newSilentRunners("a", "a", "b")[0], time.Unix(1000, 0)
	mute := observation{silent: true, reasons: []string{"sidecar does not answer"}}
	r.toleratesSilence(mute, start)
	if r.toleratesSilence(observation{}, start.Add(time.Second)) {
		t.Error("toleratesSilence is true although the instance responds")
	}
	if !r.toleratesSilence(mute, start.Add(silenceTimeout+time.Second)) {
		t.Error("the silence before the response counts")
	}
	if r.toleratesSilence(observation{reasons: []string{"sidecar: envoy: DRAINING"}}, start.Add(time.Hour)) {
		t.Error("toleratesSilence is true although the sidecar reports a reason")
	}
}

func TestReasonForSilentInstanceIsLoggedOnce(t *testing.T) {
	r, start := newSilentRunners("a", "b")[0], time.Unix(1000, 0)
	sub := r.mesh.events.subscribe()
	for n := range 5 {
		r.toleratesSilence(observation{silent: true, reasons: []string{"sidecar does not answer"}}, start.Add(time.Duration(n)*silenceTimeout))
	}
	r.mesh.events.close()
	events, _ := sub.Next(nil)
	if len(events) != 1 || !strings.Contains(events[0].Line, "counts as ready, because no other instance of the workload responds") {
		t.Errorf("got %v", events)
	}
}

func TestFrozenAgentKeepsOnlyInstanceInService(t *testing.T) {
	m := startMesh(t, testConfig(t, testTopology(t, oneApp)))
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
	eventually(t, "the mesh detects the silence", silent)
	if ready, reasons, _ := r.state(); !ready || len(reasons) == 0 {
		t.Errorf("the instance is ready: %v, reasons %q", ready, reasons)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a response of the instance", func() bool { return !silent() })
	m.inspectEvents(func(events []Event) {
		if slices.ContainsFunc(events, func(e Event) bool { return e.Kind == NotReady }) {
			t.Error("the instance was not ready meanwhile")
		}
	})
}

// inspectEvents calls look with the events so far.
func (r *testMesh) inspectEvents(look func([]Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	look(r.events)
}
