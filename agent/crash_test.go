package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestEnvoyExitIsReportedByReasonAndCode(t *testing.T) {
	t.Parallel()
	n := 0
	for _, version := range testenv.EnvoyVersions() {
		for _, c := range []struct {
			signal syscall.Signal
			code   int
			name   string
		}{
			{syscall.SIGSEGV, 139, "SIGSEGV"},
			{syscall.SIGABRT, 134, "SIGABRT"},
			{syscall.SIGKILL, 137, "SIGKILL"},
		} {
			n++
			address := fmt.Sprintf("127.102.20.%d", n)
			t.Run(version+" "+c.name, func(t *testing.T) {
				s := newSetup(t, address)
				s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version))
				s.within = []string{"sh", "-c", `ulimit -c 0; exec "$0" "$@"`}
				r := s.startReady(t)
				if err := syscall.Kill(r.envoy(), c.signal); err != nil {
					t.Fatal(err)
				}
				r.checkExit(c.code, "reason=signaled", "Envoy ended: ended by "+c.name)
			})
		}
	}
}

func TestRestartsAreCountedByReason(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.102.21.1")
	s.args = append(s.args, "--restart")
	r := s.startReady(t)
	first := r.envoy()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.eventually("another Envoy is ready", func() error {
		if ready, reasons, err := r.readiness(); err != nil || !ready {
			return fmt.Errorf("%v, %w", reasons, err)
		}
		if pids := r.startedEnvoys(); len(pids) < 2 {
			return errors.New("no other Envoy yet")
		}
		return nil
	})
	status := r.waitState(stateRunning)
	if status.Restarts != 1 || status.PID == first || status.LastEnd == nil || status.LastEnd.Reason != "signaled" || status.LastEnd.ExitCode != 137 {
		t.Errorf("status: %+v, last end %+v", status, status.LastEnd)
	}
	_, metrics, err := r.http("GET", "15020/metrics")
	for _, want := range []string{`istio_agent_envoy_restarts_total{reason="signaled"} 1`, `istio_agent_envoy_ends_total{reason="signaled"} 1`,
		`istio_agent_envoy_ends_total{reason="oom-killed"} 0`, `istio_agent_envoy_processes{state="running"} 1`, `istio_agent_envoy_processes{state="starting"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics (%v) lack %s", err, want)
		}
	}
	r.signal(syscall.SIGTERM)
	r.checkExit(0)
}

func TestEnvoyCrashDuringDrainIsNotClean(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.22.1")
	r := s.start(t)
	r.waitReady()
	late := r.getSlowly(testTimeout)
	r.signal(syscall.SIGTERM)
	r.waitState(stateDraining)
	killProcess(t, r.envoy(), syscall.SIGKILL)
	<-late
	r.checkExit(137, "Envoy exited during the drain")
}

// TestEnvoyKilledByOOMIsReportedAsOOM makes an Envoy without an overload manager buffer a request of one gigabyte.
func TestEnvoyKilledByOOMIsReportedAsOOM(t *testing.T) {
	t.Parallel()
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			s := newSetup(t, fmt.Sprintf("127.102.23.%d", n+1))
			s.env = append(s.env, "PROXY_MEMORY_LIMIT=0", "ENVOY_PATH="+testenv.EnvoyOf(t, version))
			s.bufferRequests(t)
			s.cp.start(t)
			s.within = []string{"sh", "-c", `echo $$ >"` + newMemoryCgroup(t, "150000000") + `" || exit 99; exec "$0" "$@"`}
			r := s.start(t)
			r.waitReady()
			c, err := net.Dial("tcp", s.address+":8443")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", maxKept)
			if err != nil {
				t.Fatal(err)
			}
			if sent, err := io.Copy(c, zeroes{}); err == nil {
				t.Errorf("Envoy accepted %d bytes", sent)
			}
			r.checkExit(137, "reason=oom-killed", "for lack of memory", "higher memory limit")
		})
	}
}

const maxKept = 1 << 30

// bufferRequests makes the proxy's plain HTTP listener buffer each request completely.
func (s *agentSetup) bufferRequests(t *testing.T) {
	t.Helper()
	chain := s.cp.listener.FilterChains[0]
	chain.TransportSocket = nil
	filter := chain.Filters[0]
	hcm := &hcmv3.HttpConnectionManager{}
	if err := filter.GetTypedConfig().UnmarshalTo(hcm); err != nil {
		t.Fatal(err)
	}
	buffer := &hcmv3.HttpFilter{Name: "buffer", ConfigType: &hcmv3.HttpFilter_TypedConfig{
		TypedConfig: mustAny(&bufferv3.Buffer{MaxRequestBytes: wrapperspb.UInt32(maxKept)}),
	}}
	hcm.HttpFilters = append([]*hcmv3.HttpFilter{buffer}, hcm.HttpFilters...)
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: mustAny(hcm)}
}

// zeroes is an endless reader.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// reports returns the crash reports of an agent, oldest first.
func (s *agentSetup) reports(t *testing.T) []map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, "etc/istio/proxy", reportDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]any
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", file, info.Mode(), err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r map[string]any
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if strings.Contains(string(text), "very-hidden") || strings.Contains(string(text), testToken+`"`) {
			t.Errorf("the report contains secrets: %s", text)
		}
		all = append(all, r)
	}
	return all
}

func TestCrashReportIsComplete(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.102.24.1")
	s.write(t, "last-words", "")
	s.env = append(s.env, "KUBERNETES_SERVICE_HOST=127.0.0.1", "TERMINATION_MESSAGE_PATH="+filepath.Join(s.dir, "last-words"), "ISTIO_META_DB_PASSWORD=very-hidden")
	s.within = []string{"sh", "-c", `ulimit -c 0; exec "$0" "$@"`}
	r := s.startReady(t)
	killProcess(t, r.envoy(), syscall.SIGSEGV)
	r.checkExit(139, "wrote a crash report of Envoy")
	reports := s.reports(t)
	if len(reports) != 1 {
		t.Fatalf("%d reports, want 1", len(reports))
	}
	end, _ := reports[0]["end"].(map[string]any)
	if end["reason"] != "signaled" || end["exitCode"] != 139.0 || !strings.Contains(fmt.Sprint(end["tail"]), "Segmentation fault") {
		t.Errorf("the end in the report: %v", end)
	}
	if !strings.Contains(fmt.Sprint(reports[0]["xds"]), listenerType) || !strings.Contains(fmt.Sprint(reports[0]["command"]), "--disable-hot-restart") {
		t.Errorf("the report: %v", reports[0])
	}
	words, err := os.ReadFile(filepath.Join(s.dir, "last-words"))
	if err != nil || !strings.Contains(string(words), "Envoy ended by SIGSEGV") || len(words) > maxTerminationMessage {
		t.Errorf("termination message: %q, %v", words, err)
	}
}

func TestCutRequestsCauseReportWithConfiguration(t *testing.T) {
	t.Parallel()
	s := newSlowSetup(t, "127.102.25.1", "TERMINATION_GRACE_PERIOD=8", "ISTIO_META_DB_PASSWORD=very-hidden", "ISTIO_META_TEAM=a-team")
	r := s.start(t)
	r.waitReady()
	late := r.getSlowly(testTimeout)
	r.signal(syscall.SIGTERM)
	r.checkExit(0, "are cut")
	<-late
	reports := s.reports(t)
	if len(reports) != 1 {
		t.Fatalf("%d reports, want 1", len(reports))
	}
	if config := fmt.Sprint(reports[0]["config"]); !strings.Contains(config, "envoy.http_connection_manager") && !strings.Contains(config, "HttpConnectionManager") || !strings.Contains(config, "a-team") {
		t.Errorf("the configuration in the report: %s", config)
	}
	if !strings.Contains(fmt.Sprint(reports[0]["why"]), "1 request ") {
		t.Errorf("why: %v", reports[0]["why"])
	}
}

func TestRejectedConfigurationIsReportedWhenTheProxyIsStopped(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.102.26.1")
	s.cp.listener.FilterChains[0].Filters[0].ConfigType = nil // Envoy rejects this
	s.cp.start(t)
	r := s.start(t)
	r.eventually("the listener is rejected", func() error {
		_, body, err := r.http("GET", "15020/debug/xdsz")
		if err == nil && !strings.Contains(body, `"rejected"`) {
			err = errors.New(body)
		}
		return err
	})
	r.signal(syscall.SIGTERM)
	r.checkExit(0, "Envoy never became ready, because it rejected")
	if reports := s.reports(t); len(reports) != 1 || reports[0]["config"] == nil {
		t.Errorf("reports: %v", reports)
	}
}

func TestOldCrashReportsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := &envoySupervisor{Agent: &Agent{bootstrapFile: filepath.Join(dir, "envoy-rev.json")}}
	var files []string
	for n := range 5 {
		file, err := s.writeReportFile(crashReport{Time: time.Unix(int64(n), 0), Why: "test", Config: json.RawMessage(`{"a":1}`)})
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	left, err := filepath.Glob(filepath.Join(dir, reportDir, "*"))
	if want := files[2:]; err != nil || !slices.Equal(left, want) {
		t.Errorf("left are %v, %v; want %v", left, err, want)
	}
	large, err := s.writeReportFile(crashReport{Time: time.Unix(9, 0), Settings: []config.Setting{{Value: strings.Repeat("x", 2*maxReportSize)}}})
	if info, statErr := os.Stat(large); err != nil || statErr != nil || info.Size() > maxReportSize {
		t.Errorf("a report without a size limit: %v, %v", err, statErr)
	}
	s.bootstrapFile = "/dev/null/envoy-rev.json"
	if _, err := s.writeReportFile(crashReport{}); err == nil {
		t.Error("a report was written to a path that is not writable")
	}
}

// newMemoryCgroup creates a control group with a memory limit, and returns its cgroup.procs. A process joins the group
// by writing its PID to that file.
func newMemoryCgroup(t *testing.T, limit string) string {
	t.Helper()
	for _, kind := range []struct{ dir, limit, swap string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"},
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
	} {
		dir, err := os.MkdirTemp(kind.dir, "pilotfish-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			eventually(t, "an empty control group", func() error { return os.Remove(dir) })
		})
		if setLimit(filepath.Join(dir, kind.limit), limit) != nil {
			continue
		}
		_ = setLimit(filepath.Join(dir, kind.swap), "0")
		return filepath.Join(dir, "cgroup.procs")
	}
	t.Fatal("no control group with a memory limit can be made: root and a writable cgroup file system are needed")
	return ""
}

// setLimit writes a value to an existing control file. It fails outside a control group, because the file is missing
// there.
func setLimit(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
