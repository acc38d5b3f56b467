package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/status"
)

// report asks for readiness or liveness, and gives what is said of one part.
func (r *running) report(path, part string) (code int, p status.PartReport, err error) {
	code, body, err := r.http("GET", "15020"+path+"?format=json")
	if err != nil {
		return 0, p, err
	}
	var report status.Report
	if err := json.Unmarshal([]byte(body), &report); err != nil {
		return 0, p, fmt.Errorf("%w: %s", err, body)
	}
	for _, p := range report.Reasons {
		if p.Part == part {
			return code, p, nil
		}
	}
	return code, p, fmt.Errorf("nothing is said of %s: %s", part, body)
}

// waitReport waits for an answer about a part whose reason has the words.
func (r *running) waitReport(path, part string, code int, words string) status.PartReport {
	r.t.Helper()
	var last status.PartReport
	r.eventually(fmt.Sprintf("%s: %d, %s: %s", path, code, part, words), func() error {
		got, p, err := r.report(path, part)
		if err == nil && (got != code || !strings.Contains(p.Reason, words)) {
			err = fmt.Errorf("%d %+v", got, p)
		}
		last = p
		return err
	})
	if !last.Ready && (last.Since.IsZero() || last.Remedy == "") {
		r.t.Errorf("neither since when nor what to do: %+v", last)
	}
	return last
}

// TestFirstConfigurationThatEnvoyRejectsIsToldAndMakesUnready also for an Envoy that was started again under the same
// agent: what the one before it accepted is of no use to it.
func TestFirstConfigurationThatEnvoyRejectsIsToldAndMakesUnready(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.104.11.1")
	s.args = append(s.args, "--restart")
	s.cp.bad.Store(true)
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReport("/healthz/ready", "xds", 503, "Envoy rejected its first Listener configuration")
	r.waitReport("/healthz/ready", "envoy", 503, "listeners received and rejected")
	r.waitReport("/healthz/live", "xds", 200, "")

	stop()
	s.cp.bad.Store(false)
	stop = s.cp.start(t)
	r.waitReady()

	// Envoy keeps what it has when something bad comes later.
	stop()
	s.cp.bad.Store(true)
	s.cp.start(t)
	r.waitReport("/healthz/ready", "xds", 200, "keeps the last good one")

	first := r.envoy()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.waitReport("/healthz/ready", "xds", 503, "Envoy rejected its first Listener configuration")
	if again := r.envoy(); again == first {
		t.Errorf("Envoy %d was not started again", first)
	}
}

func TestFrozenEnvoyIsNeitherReadyNorAliveUntilItThaws(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.104.12.1")
	s.env = append(s.env, "ENVOY_SILENCE_LIMIT=2s")
	s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	r.waitReport("/healthz/live", "envoy", 200, "")
	pid := r.envoy()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.waitReport("/healthz/live", "envoy", 503, "Envoy runs, and has not answered")
	r.waitReport("/healthz/ready", "envoy", 503, "does not answer")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.waitReport("/healthz/live", "envoy", 200, "")
	r.waitReady()
}

func TestCertificatePastItsEndMakesUnready(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.104.13.1")
	s.cp.life = 3 * time.Second
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	stop()
	p := r.waitReport("/healthz/ready", "certificates", 503, "the certificate expired")
	if age := time.Since(p.Since); age < 0 || age > patience {
		t.Errorf("since %v", p.Since)
	}
	r.waitReport("/healthz/live", "certificates", 200, "")
	s.cp.life = time.Hour
	s.cp.start(t)
	r.waitReady()
}

func TestLostControlPlaneMakesUnreadyAfterTheTimeThatWasSet(t *testing.T) {
	t.Parallel()
	lasting, limited := newSetup(t, "127.104.14.1"), newSetup(t, "127.104.14.2")
	limited.env = append(limited.env, "UNREADY_AFTER_CONTROL_PLANE_LOSS=1s")
	var proxies []*running
	var stops []func()
	for _, s := range []*setup{lasting, limited} {
		stops = append(stops, s.cp.start(t))
		proxies = append(proxies, s.start(t))
	}
	for i, r := range proxies {
		r.waitReady()
		stops[i]()
	}
	proxies[1].waitReport("/healthz/ready", "xds", 503, "not connected to the control plane")
	proxies[0].waitReport("/healthz/ready", "xds", 200, "not connected to the control plane")
	limited.cp.start(t)
	proxies[1].waitReady()
}

// TestStormOfProbesCostsNoMemory: what it takes while it lasts is bounded by how many ask at a time, not by how many ask.
func TestStormOfProbesCostsNoMemory(t *testing.T) {
	t.Parallel()
	const callers, each, mostGrowth = 50, 200, 8 << 10 // KiB
	s := newSetup(t, "127.104.15.1")
	s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	r.waitSettled()
	storm := func(times int, keep bool) {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: !keep}}
				defer client.CloseIdleConnections()
				for range times {
					answer, err := client.Get("http://" + s.address + ":15020/healthz/ready")
					if err != nil {
						t.Error(err)
						return
					}
					_ = answer.Body.Close()
					if answer.StatusCode != http.StatusOK {
						t.Errorf("%d in a storm", answer.StatusCode)
					}
				}
			})
		}
		all.Wait()
	}
	storm(20, true) // so that what the first one costs is not counted
	before := anonymousKiB(t, r.cmd.Process.Pid)
	t.Logf("before: %d KiB", before)
	began := time.Now()
	storm(each, true)
	storm(each/4, false)
	t.Logf("%d probes in %v", callers*each*5/4, time.Since(began))
	began = time.Now()
	s.stormAtOnce(t, callers, each)
	t.Logf("%d probes at once answered in %v", callers*each, time.Since(began))
	after := anonymousKiB(t, r.cmd.Process.Pid)
	t.Logf("after: %d KiB", after)
	if after > before+mostGrowth {
		t.Errorf("memory grew from %d to %d KiB", before, after)
	}
}

// stormAtOnce sends all probes of each caller before it reads an answer: 10,000 in less than a second, however long their
// answers take.
func (s *setup) stormAtOnce(t *testing.T, callers, each int) {
	t.Helper()
	probes := strings.Repeat("GET /healthz/ready HTTP/1.1\r\nHost: x\r\n\r\n", each)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			conn, err := net.DialTimeout("tcp", s.address+":15020", patience)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(2 * patience))
			go func() { _, _ = io.WriteString(conn, probes) }() // its failure is one of the answers too
			in := bufio.NewReader(conn)
			for n := range each {
				answer, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Errorf("answer %d: %v", n, err)
					return
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				if answer.StatusCode != http.StatusOK {
					t.Errorf("answer %d is %d", n, answer.StatusCode)
				}
			}
		})
	}
	all.Wait()
}

func (r *running) waitSettled() {
	r.t.Helper()
	r.eventually("it has settled", func() error {
		_, body, err := r.http("GET", "15020/metrics")
		if want := fmt.Sprintf("go_gc_gogc_percent %d\n", heapGrowth); err == nil && !strings.Contains(body, want) {
			err = fmt.Errorf("no %s", want)
		}
		return err
	})
}

func TestWhatAScrapeTookIsGivenBackAfterIt(t *testing.T) {
	t.Parallel()
	const pages, own = 3 << 10, 2 << 10 // KiB
	s := newSetup(t, "127.104.15.2")
	s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	r.waitSettled()
	before := anonymousKiB(t, r.cmd.Process.Pid)
	for range 20 {
		if code, _, err := r.http("GET", "15020/stats/prometheus"); err != nil || code != http.StatusOK {
			t.Fatal(code, err)
		}
	}
	most := statusKiB(t, r.cmd.Process.Pid, "VmRSS:")
	r.eventually("it has given back what scrapes took", func() error {
		all, mine := statusKiB(t, r.cmd.Process.Pid, "VmRSS:"), anonymousKiB(t, r.cmd.Process.Pid)
		if all > most-pages || mine > before+own {
			return fmt.Errorf("it has %d KiB of %d, %d KiB of its own of %d before", all, most, mine, before)
		}
		return nil
	})
}

// anonymousKiB is the memory of a process that is its own.
func anonymousKiB(t *testing.T, pid int) int {
	t.Helper()
	return statusKiB(t, pid, "RssAnon:")
}

func statusKiB(t *testing.T, pid int, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), field)
	fields := strings.Fields(rest)
	n, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
