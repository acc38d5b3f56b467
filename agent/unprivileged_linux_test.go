package agent

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// rootOnPort53 returns an agent that runs as root and serves DNS on port 53, in a directory that other users may enter.
func rootOnPort53(t *testing.T, address string) *agentSetup {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the agent starts Envoy as another user")
	}
	s := newSetup(t, address)
	for _, dir := range []string{s.dir, filepath.Dir(s.dir)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	s.env = append(s.env, "ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR="+address+":53", "ENVOY_PATH="+openEnvoy(t, testenv.EnvoyVersion))
	return s
}

// openDir returns a directory that every user may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// openEnvoy copies an Envoy to where every user can execute it. It uses another program for that: a file that this
// process writes may be open in a child of another test, and could then not be executed.
func openEnvoy(t *testing.T, version string) string {
	t.Helper()
	path := filepath.Join(openDir(t), "envoy-"+version)
	if out, err := exec.Command("cp", testenv.EnvoyOf(t, version), path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// processIDs returns the real, effective, saved and file system IDs of a process, and the number of its supplementary
// groups.
func processIDs(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		for _, field := range []string{"Uid:", "Gid:", "Groups:", "CapEff:"} {
			if strings.HasPrefix(line, field) {
				found = append(found, strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return strings.Join(found, ", ")
}

const asProxy = "Uid: 1337 1337 1337 1337, Gid: 1337 1337 1337 1337, Groups:, CapEff: 0000000000000000"

func TestRootAgentOnPort53RunsEnvoyAsProxyUser(t *testing.T) {
	t.Parallel()
	s := rootOnPort53(t, "127.170.21.1")
	// Envoy opens its output again by name for an access log.
	override := filepath.Join(openDir(t), "override.json")
	if err := os.WriteFile(override, []byte(`{"admin": {"access_log": [{"name": "envoy.access_loggers.file", "typed_config": {
		"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": "/dev/stdout",
		"log_format": {"text_format_source": {"inline_string": "seen %REQ(:PATH)%\n"}}}}]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "ISTIO_BOOTSTRAP_OVERRIDE="+override)
	r := s.startReady(t)
	envoy := r.envoy()
	if got := processIDs(t, envoy); got != asProxy {
		t.Errorf("Envoy runs as %s, want %s", got, asProxy)
	}
	if got := processIDs(t, r.cmd.Process.Pid); !strings.HasPrefix(got, "Uid: 0") {
		t.Errorf("the agent runs as %s", got)
	}
	for path, mode := range map[string]os.FileMode{
		"etc/istio/proxy/XDS": 0o600, "var/run/secrets/workload-spiffe-uds/socket": 0o600, "etc/istio/proxy/envoy-rev.json": 0o600,
	} {
		info, err := os.Lstat(filepath.Join(s.dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != uds.ProxyUID || info.Mode().Perm() != mode {
			t.Errorf("%s is of user %d with mode %o, want %d with %o", path, owner, info.Mode().Perm(), uds.ProxyUID, mode)
		}
	}
	if info, err := os.Lstat(filepath.Join(s.dir, "etc/istio/proxy/control")); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the control socket does not belong to root: %v %v", info, err)
	}
	if _, _, err := r.http("GET", "15000/server_info?mark"); err != nil {
		t.Fatal(err)
	}
	r.eventually("Envoy's access log", func() error {
		if !strings.Contains(r.out.String(), "seen /server_info?mark") {
			return fmt.Errorf("it is not in the output")
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
	if err := os.Remove(filepath.Join(s.dir, "etc/istio/proxy", validationMarkFile)); err != nil {
		t.Error(err)
	}
	r.checkNothingLeft()
}

func TestEnvoyOfAnotherUserIsUpgradedBothWays(t *testing.T) {
	t.Parallel()
	for way, address := range map[string]string{"hot-restart": "127.170.22.1", "hand-over": "127.170.23.1"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := rootOnPort53(t, address)
			s.args = append(s.args, "--restart")
			r := s.startReady(t)
			old := r.envoy()
			u := r.upgrade(t, "--envoy-path", openEnvoy(t, testenv.OldEnvoyVersion), "--way", way, "--keep", "1s", "--wait")
			u.expectExit(0)
			young := r.envoy()
			if got := processIDs(t, young); young == old || got != asProxy {
				t.Errorf("after process %d it is %d, which runs as %s, want %s", old, young, got, asProxy)
			}
			r.signal(syscall.SIGTERM)
			r.expectExit(0)
			r.checkNothingLeft()
		})
	}
}

func TestEnvoyNotExecutableByProxyUserIsReported(t *testing.T) {
	t.Parallel()
	s := rootOnPort53(t, "127.170.24.1")
	closed := filepath.Join(s.dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(closed, "envoy")
	if err := os.Rename(openEnvoy(t, testenv.EnvoyVersion), path); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "ENVOY_PATH="+path)
	s.start(t).checkExit(1, "as user 1337", "allow that user to read and execute "+path)
}

// A container's root usually lacks SYS_PTRACE, and cannot inspect the sockets of another user's Envoy.
func TestInvisibleConnectionsOfOldEnvoyLinger(t *testing.T) {
	t.Parallel()
	for way, address := range map[string]string{HotRestart: "127.170.25.1", HandOver: "127.170.26.1"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := rootOnPort53(t, address)
			s.within = []string{"setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace"}
			s.serveTraffic(t)
			s.cp.start(t)
			s.args = append(s.args, "--restart")
			r := s.start(t)
			r.waitReady()
			c, err := net.Dial("tcp", address+":9000")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			u := r.upgrade(t, "--envoy-path", openEnvoy(t, testenv.OldEnvoyVersion), "--way", way, "--keep", "3s", "--wait")
			if code := u.waitExit(); code != 0 || !strings.Contains(u.out.String(), "the time limit for its 1 idle connections has passed") {
				t.Errorf("upgrade: %d: %s", code, u.out)
			}
			if warned := strings.Contains(r.out.String(), "some may reach the old Envoy"); warned != (way == HandOver) {
				t.Errorf("warning that connections cannot be steered: %v", warned)
			}
			r.signal(syscall.SIGTERM)
			r.checkExit(0)
			r.checkNothingLeft()
		})
	}
}
