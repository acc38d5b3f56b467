package agent

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const testAdminSocket = "admin/envoy.sock"

// withAdminSocket makes Envoy's admin interface listen on a unix socket.
func (s *agentSetup) withAdminSocket() *agentSetup {
	s.adminSocket = filepath.Join(s.dir, testAdminSocket)
	s.env = append(s.env, "ENVOY_ADMIN_SOCKET="+testAdminSocket)
	return s
}

func TestAdminSocketWorksThroughUpgrades(t *testing.T) {
	t.Parallel()
	for i, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, fmt.Sprintf("127.199.%d.1", 10+i)).withAdminSocket()
			s.env = append(s.env, "ISTIO_META_DB_PASSWORD=confidential")
			r := s.upgradable(t, version, "--restart")
			r.checkServes(version, 0)
			r.checkAdminClients(version)
			for epoch, way := range []string{HotRestart, HandOver, HotRestart} {
				if u := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, version), "--way", way, "--wait"); u.waitExit() != 0 {
					t.Fatalf("upgrade by %s: %s", way, u.out)
				}
				r.checkServes(version, epoch+1)
				r.checkAdminClients(version)
				r.waitOnlyEnvoy(r.envoy())
			}
			killProcess(t, r.envoy(), syscall.SIGKILL)
			r.checkServes(version, 4)
			r.signal(syscall.SIGTERM)
			r.expectExit(0)
			r.checkNothingLeft()
		})
	}
}

// checkAdminClients checks the socket's modes and the clients of the admin interface.
func (r *agentProcess) checkAdminClients(version string) {
	r.t.Helper()
	for path, want := range map[string]fs.FileMode{r.adminSocket: fs.ModeSocket | 0o600, filepath.Dir(r.adminSocket): fs.ModeDir | 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			r.t.Errorf("%s: %v, %v; want %s", path, info, err, want)
		}
	}
	if _, _, err := r.tcp("GET", "15000/ready"); err == nil {
		r.t.Error("the admin interface answers on TCP")
	}
	for _, path := range []string{"15090/stats/prometheus", "15020/stats/prometheus"} {
		if code, body, err := r.http("GET", path); err != nil || code != 200 || !strings.Contains(body, "envoy_server_uptime") {
			r.t.Errorf("%s: %d, %v, %.200s", path, code, err, body)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"request", "GET", "server_info"}, "/" + version + "/"},
		{[]string{"request", "GET", "server_info"}, `"DB_PASSWORD": "[redacted]"`},
		{[]string{"request", "GET", "config_dump"}, `"DB_PASSWORD": "[redacted]"`},
		{[]string{"log", "--envoy", "upstream:debug"}, "debug"},
		{[]string{"log", "--reset"}, ""},
	} {
		command := *r.agentSetup
		command.args = c.args
		if a := command.start(r.t); a.waitExit() != 0 || !strings.Contains(a.out.String(), c.want) {
			r.t.Errorf("%v: %s", c.args, a.out)
		}
	}
}

func TestAdminSocketDirectoryMustBePrivate(t *testing.T) {
	dir := t.TempDir()
	private, open := filepath.Join(dir, "private"), filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(private, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{"", ""},
		{filepath.Join(private, "admin.sock"), ""},
		{filepath.Join(private, "again.sock"), ""},
		{filepath.Join(open, "admin.sock"), "mode 0700"},
		{filepath.Join(link, "admin.sock"), "mode 0700"},
	} {
		err := makeAdminDirectory(&config.Config{Envoy: config.Envoy{AdminSocket: c.path}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
}
