package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// command runs another command of the agent in the same directory, and returns its output and exit code.
func (r *agentProcess) command(args ...string) (string, int) {
	r.t.Helper()
	s := *r.agentSetup
	s.args = args
	c := s.start(r.t)
	code := c.waitExit()
	return c.out.String(), code
}

func TestLogLevelsSurviveEnvoyRestart(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.107.1.1")
	s.args = append(s.args, "--restart", "--proxyLogLevel=warning,misc:error")
	r := s.startReady(t)
	if out, code := r.command("log"); code != 0 || !strings.Contains(out, "info") || !strings.Contains(out, "warning,misc:error") {
		t.Errorf("log: code %d\n%s", code, out)
	}
	out, code := r.command("log", "--agent=xds:debug", "--envoy=upstream:debug", "--for=5m")
	if code != 0 || !strings.Contains(out, "info,xds:debug") || !strings.Contains(out, "upstream:debug") || !strings.Contains(out, "in 5m") {
		t.Errorf("log with levels: code %d\n%s", code, out)
	}
	first := r.envoy()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.eventually("another Envoy", func() error {
		if r.envoy() == first {
			return errors.New("still the first")
		}
		return nil
	})
	r.waitReady()
	if out, _ := r.command("log"); !strings.Contains(out, "warning,misc:error,upstream:debug") {
		t.Errorf("after a restart of Envoy:\n%s", out)
	}
	if out, code := r.command("log", "--reset"); code != 0 || strings.Contains(out, "debug") || !strings.Contains(out, "warning,misc:error") {
		t.Errorf("log --reset: code %d\n%s", code, out)
	}
	if out, code := r.command("log", "--envoy=upstraem:debug"); code != 1 || !strings.Contains(out, "did you mean upstream") {
		t.Errorf("an unknown component: code %d\n%s", code, out)
	}
	if out, code := r.command("log", "--agent=xds:debug", "--envoy=upstream:debug", "--for=1s"); code != 0 || !strings.Contains(out, "upstream:debug") {
		t.Errorf("log for a second: code %d\n%s", code, out)
	}
	r.eventually("the levels of agent and Envoy are reset", func() error {
		code, levels, err := r.http("POST", "15000/logging")
		if err != nil || code != 200 || !strings.Contains(levels, "upstream: warning\n") {
			return fmt.Errorf("Envoy's levels: %d %w %s", code, err, levels)
		}
		if out, code := r.command("log"); code != 0 || strings.Contains(out, "debug") || !strings.Contains(out, "warning,misc:error") {
			return fmt.Errorf("log: code %d: %s", code, out)
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
	if out, code := r.command("log"); code != 1 || !strings.Contains(out, "no agent responds") {
		t.Errorf("without an agent: code %d\n%s", code, out)
	}
	r.checkNothingLeft()
}

func TestLogLevelsAndJSONForEveryEnvoy(t *testing.T) {
	t.Parallel()
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, fmt.Sprintf("127.107.3.%d", n+1))
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version))
			s.args = append(s.args, "--log_as_json")
			r := s.startReady(t)
			if out, code := r.command("log", "--envoy=error,config:debug,http:trace"); code != 0 || !strings.Contains(out, "error,config:debug,http:trace") {
				t.Errorf("log: code %d\n%s", code, out)
			}
			if out, code := r.command("log", "--reset", "-o", "json"); code != 0 || !strings.Contains(out, `"envoy": "warning"`) {
				t.Errorf("log --reset: code %d\n%s", code, out)
			}
			r.signal(syscall.SIGTERM)
			r.expectExit(0)
			ofEnvoy := false
			for line := range strings.Lines(r.out.String()) {
				var m struct{ Level, Msg, Time, Scope string }
				if err := json.Unmarshal([]byte(line), &m); err != nil || m.Level == "" || m.Msg == "" || m.Time == "" {
					t.Errorf("%v: %q", err, line)
				}
				ofEnvoy = ofEnvoy || strings.HasPrefix(m.Scope, "envoy ")
			}
			if !ofEnvoy {
				t.Error("no line was written by Envoy")
			}
		})
	}
}

func TestSIGUSR1ReopensTheLogFilesOfAgentAndEnvoy(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.107.2.1")
	own, access := filepath.Join(s.dir, "agent.log"), filepath.Join(s.dir, "access.log")
	s.cp.listener.AccessLog = []*accesslogv3.AccessLog{{Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{
		TypedConfig: mustAny(&filev3.FileAccessLog{Path: access}),
	}}}
	s.args = append(s.args, "--log_target="+own+",stderr")
	r := s.startReady(t)
	r.eventually("the access log exists", func() error { _, err := os.Stat(access); return err })
	for _, path := range []string{own, access} {
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
	}
	r.signal(syscall.SIGUSR1)
	for _, path := range []string{own, access} {
		r.eventually(path+" is there again", func() error {
			// Envoy reopens its file with the next line that it writes.
			c, _, err := dialProxy(s.address)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err = io.WriteString(c, "GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
				return err
			}
			_, err = os.Stat(path)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("not yet: %w", err)
			}
			return err
		})
	}
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
	if text, err := os.ReadFile(own); err != nil || !strings.Contains(string(text), "signal to stop") {
		t.Errorf("the new log file: %v\n%s", err, text)
	}
}

func TestProxySurvivesExitOfLogReader(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.107.4.1")
	s.args = append(s.args, "--log_target=stderr,"+filepath.Join(s.dir, "agent.log"))
	s.cp.start(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := s.prepare(t)
	r.cmd.Stdout, r.cmd.Stderr = write, write
	r.run(t)
	_ = write.Close()
	r.waitReady()
	_ = read.Close()
	for n := 1; n <= 3; n++ {
		r.signal(syscall.SIGUSR1) // which is logged
		r.eventually("the agent logs to the file", func() error {
			text, err := os.ReadFile(filepath.Join(s.dir, "agent.log"))
			if err == nil && strings.Count(string(text), "reopened") < n {
				err = errors.New("not yet")
			}
			return err
		})
	}
	if ready, reasons, err := r.readiness(); err != nil || !ready {
		t.Errorf("not ready any more: %v %v", reasons, err)
	}
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
}
