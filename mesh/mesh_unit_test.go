package mesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

func TestOutputLinesAreTruncated(t *testing.T) {
	var got []string
	l := &lineWriter{emit: func(s string) { got = append(got, s) }}
	_, _ = l.Write([]byte("one\ntw"))
	_, _ = l.Write([]byte("o\r\n\n" + strings.Repeat("x", maxLine+100) + "\nlast \xff"))
	l.flush()
	if len(got) != 5 || got[0] != "one" || got[1] != "two" || got[2] != "" || got[4] != "last \uFFFD" {
		t.Errorf("got %d lines: %.40q", len(got), got)
	}
	if len(got[3]) > maxLine+20 || !strings.HasSuffix(got[3], "(cut)") {
		t.Errorf("a long line came out with %d bytes", len(got[3]))
	}
	for n := range 30 {
		_, _ = fmt.Fprintln(l, n)
	}
	if tail := l.last(); len(tail) != tailLines || tail[tailLines-1] != "29" || tail[0] != "20" {
		t.Errorf("the last lines are %q", tail)
	}
}

func TestRestartBackoffGrowsAndEnds(t *testing.T) {
	b := newRestartBudget()
	now := time.Unix(0, 0)
	var pauses []time.Duration
	for {
		pause, again := b.RecordFailure(now)
		if !again {
			break
		}
		if len(pauses) > 20 {
			t.Fatal("the process is restarted without end")
		}
		pauses = append(pauses, pause)
		now = now.Add(pause)
	}
	if !slices.IsSorted(pauses) || pauses[0] != minPause || len(pauses) < 5 {
		t.Errorf("the pauses are %v", pauses)
	}
}

func TestProcessIsNotRestartedAfterEightFailures(t *testing.T) {
	for ran, want := range map[time.Duration]int{0: 8, 500 * time.Millisecond: 8, time.Second: 8, 8 * time.Second: -1, 10 * time.Second: -1} {
		b := newRestartBudget()
		now, ends := time.Unix(0, 0), -1
		for n := range 100 {
			now = now.Add(ran)
			pause, again := b.RecordFailure(now)
			if !again {
				ends = n + 1
				break
			}
			now = now.Add(pause)
		}
		if ends != want {
			t.Errorf("a process that runs for %s is no longer restarted after %d exits, want %d", ran, ends, want)
		}
		if lasted := now.Sub(time.Unix(0, 0)); want > 0 && lasted > 30*time.Second {
			t.Errorf("a process that runs for %s is restarted for %s, which exceeds the startup timeout of 30 s", ran, lasted)
		}
	}
}

func TestRareFailuresDoNotAccumulate(t *testing.T) {
	b := newRestartBudget()
	now := time.Unix(0, 0)
	for range 1000 {
		if pause, again := b.RecordFailure(now); !again || pause > 2*minPause {
			t.Fatalf("after a long run: pause %s, again %v", pause, again)
		}
		now = now.Add(5 * time.Minute)
	}
}

func TestSlowSubscriberLosesOnlyLogLines(t *testing.T) {
	s := newEventStream()
	sub := s.subscribe()
	for range maxPendingLines + 10 {
		s.publish(Event{Kind: Log})
	}
	s.publish(Event{Kind: Ready})
	s.close()
	events, ok := sub.Next(nil)
	if last := events[len(events)-1]; !ok || len(events) != maxPendingLines+1 || last.Kind != Ready || last.Dropped != 10 {
		t.Errorf("got %d events, the last %+v", len(events), last)
	}
	if _, ok := sub.Next(nil); ok {
		t.Error("the subscription continues after the end")
	}
	if late := s.subscribe(); late != nil {
		if _, ok := late.Next(nil); ok {
			t.Error("a subscription after the end returns events")
		}
	}
}

func TestRateSurvivesEnvoyRestart(t *testing.T) {
	var r rate
	at := time.Unix(100, 0)
	for _, step := range []struct{ count, want float64 }{{10, 0}, {40, 10}, {5, 0}, {8, 1}} {
		r.update(step.count, at)
		if r.perSecond != step.want {
			t.Errorf("at %v: %v requests per second, want %v", step.count, r.perSecond, step.want)
		}
		at = at.Add(3 * time.Second)
	}
}

func TestSumStatsAddsValues(t *testing.T) {
	if got := sumStats([]byte("cluster.inbound|9080||.upstream_rq_completed: 7\na: 5\nnonsense\nb: No recorded values\n")); got != 12 {
		t.Errorf("got %v", got)
	}
}

// TestTrafficIsCountedWhateverStatisticsAreSelected: `pilotfish status` shows it.
func TestTrafficIsCountedWhateverStatisticsAreSelected(t *testing.T) {
	for _, selected := range []*meshconfig.ProxyConfig_ProxyStatsMatcher{nil, {InclusionPrefixes: []string{"cluster.outbound"}, InclusionSuffixes: []string{"a"}}} {
		m := &Mesh{cfg: Config{Topology: &topology.Topology{Mesh: &meshconfig.MeshConfig{DefaultConfig: &meshconfig.ProxyConfig{ProxyStatsMatcher: selected}}}}}
		text, err := m.proxyConfigJSON("127.0.0.1:15012")
		if err != nil {
			t.Fatal(err)
		}
		got := &meshconfig.ProxyConfig{}
		if err := protojson.Unmarshal([]byte(text), got); err != nil {
			t.Fatal(err)
		}
		if matcher := got.GetProxyStatsMatcher(); !slices.Contains(matcher.GetInclusionSuffixes(), trafficStat) || !slices.Equal(matcher.GetInclusionPrefixes(), selected.GetInclusionPrefixes()) ||
			len(matcher.GetInclusionSuffixes()) != 1+len(selected.GetInclusionSuffixes()) {
			t.Errorf("%v of %v", matcher, selected)
		}
	}
}

func TestConfigProblemIsReportedOnceAndNotLogged(t *testing.T) {
	events := newEventStream()
	sub := events.subscribe()
	log := newControlPlane(controlplane.Config{}, events).cfg.Logger
	log.Warn("the configuration has a problem", config.ProblemAttr, "a.yaml:2: error: unknown field")
	log.With("part", "xds").Warn("client rejected configuration", "reason", "a: error: b")
	events.close()
	var lines []string
	for {
		batch, ok := sub.Next(nil)
		if !ok {
			break
		}
		for _, e := range batch {
			lines = append(lines, e.Line)
		}
	}
	if len(lines) != 1 || !strings.Contains(lines[0], "client rejected configuration") {
		t.Errorf("logged %q, want only lines without an event", lines)
	}
}
