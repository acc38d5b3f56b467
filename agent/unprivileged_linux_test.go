package agent

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const nobody = 65534

// asNobody has the agent run as a user who owns its directory and nothing else, with programs of its own.
func (s *setup) asNobody(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	for name, file := range map[string]string{"agent": os.Args[0], "envoy": testenv.Envoy(t), "older": testenv.EnvoyOf(t, testenv.OldEnvoyVersion)} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Program(t, filepath.Join(s.dir, name), data)
	}
	err := filepath.WalkDir(s.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(s.dir), 0o755); err != nil { // the test's own, in which this one is
		t.Fatal(err)
	}
	s.binary = filepath.Join(s.dir, "agent")
	s.env = append(s.env, "HOME=/nonexistent", "XDG_CACHE_HOME=", "GOCOVERDIR=", "ENVOY_PATH="+filepath.Join(s.dir, "envoy"))
	s.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// TestUnprivilegedUserRunsAndUpgradesAProxy: with nothing but its directory, and no cache to remember versions in.
func TestUnprivilegedUserRunsAndUpgradesAProxy(t *testing.T) {
	t.Parallel()
	for address, way := range map[string]string{"127.143.2.1": hotRestart, "127.143.2.2": handOver} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, address)
			s.args = append(s.args, "--restart")
			s.serveTraffic(t)
			s.cp.start(t)
			s.asNobody(t)
			r := s.start(t)
			r.waitReady()
			load := startTraffic(t, r.address)
			// The path is that of whoever gives the order.
			u := r.upgrade(t, "--envoy-path", "./older", "--way", way, "--keep", "3s", "--wait")
			if code := u.exit(); code != 0 || !strings.Contains(u.out.String(), way) {
				t.Fatalf("upgrade: %d: %s", code, u.out)
			}
			load.lossless()
			r.serves(testenv.OldEnvoyVersion, 1)
			r.end()
			if strings.Contains(r.out.String(), "level=ERROR") {
				t.Errorf("it complained:\n%s", r.out)
			}
		})
	}
}
