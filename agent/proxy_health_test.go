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

// healthReport requests readiness or liveness, and returns the report of one component.
func (r *agentProcess) healthReport(path, part string) (code int, p status.PartReport, err error) {
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
	return code, p, fmt.Errorf("no report of %s: %s", part, body)
}

// waitReport waits for a report of a component whose reason contains the words.
func (r *agentProcess) waitReport(path, part string, code int, words string) status.PartReport {
	r.t.Helper()
	var last status.PartReport
	r.eventually(fmt.Sprintf("%s: %d, %s: %s", path, code, part, words), func() error {
		got, p, err := r.healthReport(path, part)
		if err == nil && (got != code || !strings.Contains(p.Reason, words)) {
			err = fmt.Errorf("%d %+v", got, p)
		}
		last = p
		return err
	})
	if !last.Ready && (last.Since.IsZero() || last.Remedy == "") {
		r.t.Errorf("the time or the remedy is missing: %+v", last)
	}
	return last
}

// TestRejectedFirstConfigurationMakesUnready also tests a restarted Envoy: it is not ready until it has accepted a
// configuration itself.
func TestRejectedFirstConfigurationMakesUnready(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.104.11.1")
	s.args = append(s.args, "--restart")
	s.cp.sendRejected.Store(true)
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReport("/healthz/ready", "xds", 503, "Envoy rejected its first Listener configuration")
	r.waitReport("/healthz/ready", "envoy", 503, "listeners received and rejected")
	r.waitReport("/healthz/live", "xds", 200, "")

	stop()
	s.cp.sendRejected.Store(false)
	stop = s.cp.start(t)
	r.waitReady()

	// Envoy retains its configuration when it rejects a later one.
	stop()
	s.cp.sendRejected.Store(true)
	s.cp.start(t)
	r.waitReport("/healthz/ready", "xds", 200, "continues with the last accepted one")

	first := r.envoy()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.waitReport("/healthz/ready", "xds", 503, "Envoy rejected its first Listener configuration")
	if again := r.envoy(); again == first {
		t.Errorf("Envoy %d was not started again", first)
	}
}

func TestFrozenEnvoyFailsReadinessAndLiveness(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.104.12.1")
	s.env = append(s.env, "ENVOY_SILENCE_LIMIT=2s")
	r := s.startReady(t)
	r.waitReport("/healthz/live", "envoy", 200, "")
	pid := r.envoy()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.waitReport("/healthz/live", "envoy", 503, "Envoy has not responded")
	r.waitReport("/healthz/ready", "envoy", 503, "does not respond")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.waitReport("/healthz/live", "envoy", 200, "")
	r.waitReady()
}

func TestExpiredCertificateMakesUnready(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.104.13.1")
	s.cp.life = 3 * time.Second
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	stop()
	p := r.waitReport("/healthz/ready", "certificates", 503, "the certificate expired")
	if age := time.Since(p.Since); age < 0 || age > testTimeout {
		t.Errorf("since %v", p.Since)
	}
	r.waitReport("/healthz/live", "certificates", 200, "")
	s.cp.life = time.Hour
	s.cp.start(t)
	r.waitReady()
}

func TestLostControlPlaneMakesUnreadyAfterLimit(t *testing.T) {
	t.Parallel()
	lasting, limited := newSetup(t, "127.104.14.1"), newSetup(t, "127.104.14.2")
	limited.env = append(limited.env, "UNREADY_AFTER_CONTROL_PLANE_LOSS=1s")
	var proxies []*agentProcess
	var stops []func()
	for _, s := range []*agentSetup{lasting, limited} {
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

// TestStormOfProbesCostsNoMemory verifies that memory depends on the number of concurrent probes, not on their total.
func TestStormOfProbesCostsNoMemory(t *testing.T) {
	t.Parallel()
	const callers, each, maxGrowth = 50, 200, 8 << 10 // KiB
	s := newSetup(t, "127.104.15.1")
	r := s.startReady(t)
	storm := func(times int, keep bool) {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				client := http.Client{Timeout: testTimeout, Transport: &http.Transport{DisableKeepAlives: !keep}}
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
	storm(20, true) // excludes the cost of the first storm
	before := anonymousKiB(t, r.cmd.Process.Pid)
	t.Logf("before: %d KiB", before)
	began := time.Now()
	storm(each, true)
	storm(each/4, false)
	t.Logf("%d probes in %v", callers*each*5/4, time.Since(began))
	began = time.Now()
	s.sendProbesAtOnce(t, callers, each)
	t.Logf("%d probes at once answered in %v", callers*each, time.Since(began))
	after := anonymousKiB(t, r.cmd.Process.Pid)
	t.Logf("after: %d KiB", after)
	if after > before+maxGrowth {
		t.Errorf("memory grew from %d to %d KiB", before, after)
	}
}

// sendProbesAtOnce sends all probes of each client before it reads a response: 10,000 in less than a second,
// independent of the response time.
func (s *agentSetup) sendProbesAtOnce(t *testing.T, callers, each int) {
	t.Helper()
	probes := strings.Repeat("GET /healthz/ready HTTP/1.1\r\nHost: x\r\n\r\n", each)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			conn, err := net.DialTimeout("tcp", s.address+":15020", testTimeout)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(2 * testTimeout))
			go func() { _, _ = io.WriteString(conn, probes) }() // an error shows in the responses
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

func TestScrapesDoNotAccumulateMemory(t *testing.T) {
	t.Parallel()
	const maxGrowth = 4 << 10 // KiB
	s := newSetup(t, "127.104.15.2")
	r := s.startReady(t)
	scrape := func(times int) int {
		for range times {
			if code, _, err := r.http("GET", "15020/stats/prometheus"); err != nil || code != http.StatusOK {
				t.Fatal(code, err)
			}
		}
		return anonymousKiB(t, r.cmd.Process.Pid)
	}
	if before, after := scrape(50), scrape(200); after > before+maxGrowth {
		t.Errorf("the agent has %d KiB of anonymous memory after 250 scrapes, and had %d KiB after 50", after, before)
	}
}

// anonymousKiB returns the size of a process's anonymous memory.
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
