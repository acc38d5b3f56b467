package hostile

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// adminAttacks are attempts to control a proxy through its status port, its admin interface or the local mesh's endpoints.
var adminAttacks = []attack{
	{
		name:     "ending a proxy and reading its state through its own Envoy",
		position: outsider,
		limit:    "403 for orders and debug pages of the status port",
		service:  "probes and scrapes through Envoy, and an operator's commands with Envoy's user, are answered",
		run:      orderThroughEnvoy,
	},
	{
		name:     "ending a proxy of another user's local mesh, and using its Envoy's admin interface",
		position: localUser,
		limit:    "403 from the status port; no admin interface on TCP; sockets that only the mesh's user can open",
		service:  "pilotfish proxy-config, pilotfish-agent request and curl --unix-socket work for the mesh's user",
		run:      controlAsAnotherUser,
	},
	{
		name:     "ordering and reading debug pages from a foreign web page, also by DNS rebinding",
		position: webPage,
		limit:    "403",
		service:  "probes and scrapes are answered for any Host",
		run:      orderFromWebPage,
	},
}

func orderThroughEnvoy(t *testing.T) {
	adminMesh.use(t)
	before := adminMesh.instance(t, "edge").Agent.PID
	for _, page := range []struct{ method, path string }{
		{"POST", "/quitquitquit"}, {"POST", "/drain"}, {"GET", "/debug/config"}, {"GET", "/debug/certz"}, {"GET", "/debug/pprof/cmdline"},
	} {
		code, body := send(t, page.method, "http://"+edgeProxy+":8000"+page.path)
		if code != http.StatusForbidden || !strings.Contains(body, "through Envoy") {
			t.Errorf("%s %s: %d %.200s", page.method, page.path, code, body)
		}
	}
	for _, path := range []string{"/healthz/ready", "/stats/prometheus"} {
		if code, body := send(t, "GET", "http://"+edgeProxy+":8000"+path); code != http.StatusOK {
			t.Errorf("%s through Envoy: %d %.200s", path, code, body)
		}
	}
	if after := adminMesh.instance(t, "edge").Agent.PID; after != before {
		t.Errorf("the agent was process %d and is %d", before, after)
	}
	if code, body := send(t, "GET", "http://"+edgeProxy+":15020/debug/certz"); code != http.StatusOK {
		t.Errorf("an operator with Envoy's user: %d %s", code, body)
	}
	endByCommand(t, "spare")
}

func controlAsAnotherUser(t *testing.T) {
	adminMesh.use(t)
	curl := func(args ...string) (string, error) {
		return runAs(t, anotherUser, "curl", append([]string{"-sS", "--noproxy", "*", "--max-time", "10", "-w", "\n%{http_code}"}, args...)...)
	}
	admin := filepath.Join(adminMesh.agentDir("edge"), "etc/istio/proxy/admin/envoy.sock")
	for _, args := range [][]string{
		{"http://" + edgeProxy + ":15000/config_dump"},
		{"--unix-socket", admin, "http://envoy/config_dump"},
	} {
		if out, err := curl(args...); err == nil {
			t.Errorf("%v is answered: %.300s", args, out)
		}
	}
	for _, args := range [][]string{
		{"-X", "POST", "http://" + edgeProxy + ":15020/quitquitquit"},
		{"-X", "POST", "http://" + edgeProxy + ":15020/drain"},
		{"http://" + edgeProxy + ":15020/debug/config"},
	} {
		if out, err := curl(args...); err != nil || !strings.HasSuffix(out, "403") {
			t.Errorf("%v: %v: %.300s", args, err, out)
		}
	}
	for path, want := range map[string]fs.FileMode{admin: fs.ModeSocket | 0o600, filepath.Dir(admin): fs.ModeDir | 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %s", path, info, err, want)
		}
	}
	if out, err := curl("http://" + edgeProxy + ":15020/healthz/ready"); err != nil || !strings.HasSuffix(out, "200") {
		t.Errorf("a probe: %v: %s", err, out)
	}
	useAdminAsOwner(t, admin)
}

// useAdminAsOwner checks the ways in which the mesh's user reaches the admin interface.
func useAdminAsOwner(t *testing.T, socket string) {
	t.Helper()
	request := exec.Command(testenv.Bin(t, "pilotfish-agent"), "request", "GET", "server_info")
	request.Dir = adminMesh.agentDir("edge")
	for _, c := range []struct {
		cmd  *exec.Cmd
		want string
	}{
		{exec.Command("curl", "-sS", "--unix-socket", socket, "http://envoy/server_info"), testenv.EnvoyVersion},
		{request, testenv.EnvoyVersion},
		{adminMesh.pilotfish(t, "proxy-config", "bootstrap", "edge", "--name", "admin"), "own-agent"},
		{adminMesh.pilotfish(t, "proxy-config", "clusters", "--envoy-admin", "unix:"+socket), "own-agent"},
	} {
		if out, err := c.cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%v: %v: %.300s", c.cmd.Args, err, out)
		}
	}
}

func orderFromWebPage(t *testing.T) {
	adminMesh.use(t)
	status := "http://" + edgeProxy + ":15020"
	for _, page := range []struct{ method, path string }{
		{"POST", "/quitquitquit"}, {"POST", "/drain"}, {"GET", "/debug/config"}, {"GET", "/debug/certz"}, {"GET", "/debug/pprof/cmdline"},
	} {
		for _, header := range [][]string{
			{"Host", "rebound.example:15020"}, {"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "null"},
		} {
			if code, body := send(t, page.method, status+page.path, header...); code != http.StatusForbidden {
				t.Errorf("%s %s with %q: %d %.200s", page.method, page.path, header, code, body)
			}
		}
	}
	for _, path := range []string{"/healthz/ready", "/metrics", "/stats/prometheus"} {
		if code, body := send(t, "GET", status+path, "Host", "app.namespace:15020"); code != http.StatusOK {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
}

// endByCommand ends a proxy by the agent's own command, run with Envoy's user.
func endByCommand(t *testing.T, instance string) {
	t.Helper()
	before := adminMesh.instance(t, instance).Agent.PID
	cmd := exec.Command(testenv.Bin(t, "pilotfish-agent"), "request", "--debug-port=15020", "POST", "quitquitquit")
	cmd.Dir = adminMesh.agentDir(instance)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pilotfish-agent request: %v: %s", err, out)
	}
	testenv.Eventually(t, "the mesh starts the proxy that was ended again", func() error {
		if now := adminMesh.instance(t, instance).Agent; now.PID == before || now.State != "running" {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
}
