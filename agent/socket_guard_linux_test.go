package agent

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

func TestOnlyEnvoyNeedsSecret(t *testing.T) {
	start := func(path string) int32 {
		cmd := exec.Command(path, "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return int32(cmd.Process.Pid)
	}
	copySleep := func(name string) (path string) {
		path = filepath.Join(t.TempDir(), name)
		if out, err := exec.Command("cp", "/bin/sleep", path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return path
	}
	a := &Agent{}
	program := copySleep("proxy")
	own := start(program)
	a.envoyPIDs.members = map[int]bool{int(own): true}
	a.Options.Config = &config.Config{}
	a.bootstrap.AgentSecret = uds.NewSecret()
	a.Logger = slog.New(slog.DiscardHandler)
	const listed = 4711
	guard := a.newGuard("test", uds.Users{listed})
	for name, c := range map[string]struct {
		peer   uds.Peer
		exempt bool
	}{
		"an application":                      {uds.Peer{PID: start(copySleep("application"))}, true},
		"the agent's Envoy":                   {uds.Peer{PID: own}, false},
		"the agent's Envoy as a listed user":  {uds.Peer{PID: own, UID: listed}, false},
		"another agent's Envoy":               {uds.Peer{PID: start(copySleep("envoy-1.40.0"))}, false},
		"an Envoy of the same program file":   {uds.Peer{PID: start(program)}, false},
		"a process of another PID namespace":  {uds.Peer{PID: 0}, false},
		"a listed user of such a namespace":   {uds.Peer{PID: 0, UID: listed}, true},
		"a process that has ended since then": {uds.Peer{PID: 1 << 30}, false},
	} {
		if got := guard.IsExempt(c.peer); got != c.exempt {
			t.Errorf("%s is exempt: %v, want %v", name, got, c.exempt)
		}
	}
	a.bootstrap.AgentSecret = ""
	if a.newGuard("test", nil) != nil {
		t.Error("there is a guard although Envoy sends no secret")
	}
}

func TestAgentIsNotDumpableAndEnvoyGainsNoPrivileges(t *testing.T) {
	for name, c := range map[string]struct {
		address, env string
		hidden       bool
		newPrivs     string
	}{
		"by default":  {"127.155.12.1", "", true, "1"},
		"switched on": {"127.155.12.2", "AGENT_DUMPABLE=true ENVOY_NO_NEW_PRIVS=false GUARD_AGENT_SOCKETS=false", false, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, c.address)
			s.env = append(s.env, strings.Fields(c.env)...)
			makeProxyUser(t, s)
			r := s.startReady(t)
			agent, envoy := r.cmd.Process.Pid, r.envoy()
			for _, file := range []string{"environ", "maps", "mem", "auxv"} {
				if readable := readableAsProxyUser(t, agent, file); readable == c.hidden {
					t.Errorf("/proc/<agent>/%s is readable for its user: %v", file, readable)
				}
			}
			if !readableAsProxyUser(t, envoy, "environ") {
				t.Error("Envoy is not dumpable")
			}
			if got := noNewPrivs(t, envoy); got != c.newPrivs {
				t.Errorf("Envoy has NoNewPrivs %s, want %s", got, c.newPrivs)
			}
			text, err := os.ReadFile(filepath.Join(s.dir, "etc/istio/proxy/envoy-rev.json"))
			if sends := strings.Contains(string(text), uds.SecretHeader); err != nil || sends != c.hidden {
				t.Errorf("the bootstrap has the secret: %v, %v", sends, err)
			}
			r.signal(syscall.SIGTERM)
			r.checkExit(0)
			r.checkNothingLeft()
		})
	}
}

// makeProxyUser makes the agent run as the proxy user.
func makeProxyUser(t *testing.T, s *agentSetup) {
	t.Helper()
	makeReadable(t, s)
	s.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uds.ProxyUID, Gid: uds.ProxyUID}}
	s.binary = filepath.Join(openDir(t), "agent")
	if out, err := exec.Command("cp", os.Args[0], s.binary).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i, pair := range s.env {
		if strings.HasPrefix(pair, "ENVOY_PATH=") {
			s.env[i] = "ENVOY_PATH=" + openEnvoy(t, testenv.EnvoyVersion)
		}
		if dir, ok := strings.CutPrefix(pair, "GOCOVERDIR="); ok {
			chown(t, dir)
		}
	}
	chown(t, s.dir)
}

func chown(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("chown", "-R", fmt.Sprintf("%d:%[1]d", uds.ProxyUID), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func readableAsProxyUser(t *testing.T, pid int, file string) bool {
	t.Helper()
	cmd := exec.Command("sh", "-c", fmt.Sprintf("exec 3</proc/%d/%s", pid, file))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uds.ProxyUID, Gid: uds.ProxyUID}}
	return cmd.Run() == nil
}

func noNewPrivs(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "NoNewPrivs:")
	value, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(value)
}
