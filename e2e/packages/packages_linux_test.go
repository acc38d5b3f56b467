package packages

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// packages are the paths of the packages of one version.
type packages struct{ deb, rpm string }

// The packages of two versions, which the tests share.
var oldPackages, newPackages packages

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "packages-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	oldPackages, err = build("0.9.0", filepath.Join(dir, "old"))
	if err == nil {
		newPackages, err = build("1.0.0", filepath.Join(dir, "new"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds the packages from the programs under test into a new directory.
func build(version, dir string) (packages, error) {
	bin := cmp.Or(os.Getenv("PILOTFISH_TEST_BIN"), filepath.Join(testenv.Root(), "bin"))
	c := exec.Command(filepath.Join(testenv.Root(), "scripts", "packages.sh"), bin, runtime.GOARCH, version, dir)
	c.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	if out, err := c.CombinedOutput(); err != nil {
		return packages{}, fmt.Errorf("building packages from %s (`make build` builds the programs): %w: %s", bin, err, out)
	}
	deb, rpm := glob(dir, "*.deb"), glob(dir, "*.rpm")
	if len(deb) != 1 || len(rpm) != 1 {
		return packages{}, fmt.Errorf("packages: %q, %q", deb, rpm)
	}
	return packages{deb[0], rpm[0]}, nil
}

func glob(dir, pattern string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, pattern))
	return files
}

func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("no %s: run `make rpm`, or install it", p)
		}
	}
}

func TestPackagesHaveSameBytesInEachBuild(t *testing.T) {
	t.Parallel()
	again, err := build("1.0.0", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for first, second := range map[string]string{newPackages.deb: again.deb, newPackages.rpm: again.rpm} {
		a, err := os.ReadFile(first)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(second); err != nil || string(a) != string(b) {
			t.Errorf("%s has other bytes in the second build (%v)", filepath.Base(first), err)
		}
	}
}

// clusterEnv is a file as istioctl writes it for a machine.
const clusterEnv = `CANONICAL_REVISION='latest'
CANONICAL_SERVICE='shop'
ISTIO_INBOUND_PORTS='*'
ISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15020'
ISTIO_METAJSON_LABELS='{"app":"shop","service.istio.io/canonical-name":"shop"}'
ISTIO_META_CLUSTER_ID='Kubernetes'
ISTIO_META_DNS_CAPTURE='true'
ISTIO_META_MESH_ID=''
ISTIO_META_NETWORK=''
ISTIO_META_WORKLOAD_NAME='shop'
ISTIO_NAMESPACE='books'
ISTIO_SERVICE='shop.books'
ISTIO_SERVICE_CIDR='*'
POD_NAMESPACE='books'
SERVICE_ACCOUNT='shop'
TRUST_DOMAIN='cluster.local'
`

// join installs Envoy, starts a control plane on the machine, and writes the files of a machine that joins its mesh.
func (m *machine) join() {
	m.t.Helper()
	m.run("pilotfish envoy install " + m.copyIn(testenv.Envoy(m.t)) + " --output /usr/local/bin/envoy")
	m.run("mkdir -p /root/config")
	m.start(nil, "pilotfish", "control-plane", "--config-dir", "/root/config", "--state-dir", "/root/state")
	m.eventually("test -s /root/state/authority/root-cert.pem")
	m.run("pilotfish token --state-dir /root/state --namespace books --service-account shop --out /root/token")
	m.run("cd /var/lib/pilotfish/var/run/secrets && install -m 0600 -o pilotfish /root/token tokens/istio-token && install -m 0600 -o pilotfish /root/state/authority/root-cert.pem istio/root-cert.pem")
	m.write("/var/lib/pilotfish/etc/istio/config/mesh", "pilotfish", "0600", "defaultConfig:\n  discoveryAddress: 127.0.0.1:15012\n")
	m.write("/etc/pilotfish/cluster.env", "root", "0600", clusterEnv)
	m.write("/etc/pilotfish/agent.env", "root", "0600", "POD_NAME=machine-1\nINSTANCE_IP=127.0.0.1\n")
}

// startAgent starts the agent as its unit does, and waits until the proxy is ready.
func (m *machine) startAgent() {
	m.t.Helper()
	u := m.unit("pilotfish-agent.service")
	m.run("install -d -m 0700 -o pilotfish -g pilotfish /run/" + strings.Join(u["RuntimeDirectory"], ""))
	env := m.environment(u)
	user := strings.Join(u["User"], "")
	start := append([]string{"setpriv", "--reuid", user, "--regid", strings.Join(u["Group"], ""), "--init-groups", "--no-new-privs", "--bounding-set=-all",
		"sh", "-c", `umask 0077; cd ` + strings.Join(u["WorkingDirectory"], "") + `; exec "$@"`, "sh"}, u.words("ExecStart", env)...)
	m.start(env, start...)
	m.run("pilotfish-agent wait --timeoutSeconds 60")
}

// checkRedirection enables the redirection, and runs the commands that systemd runs at boot and at a stop.
func (m *machine) checkRedirection() {
	m.t.Helper()
	m.run("systemctl enable pilotfish-redirect.service pilotfish-agent.service")
	m.run("test -e /etc/systemd/system/multi-user.target.wants/pilotfish-redirect.service")
	u := m.unit("pilotfish-redirect.service")
	m.fails("pilotfish-agent iptables verify --live")
	m.runUnit(u, "ExecStart")
	m.run("pilotfish-agent iptables verify --live")
	uid := strings.TrimSpace(m.run("id -u pilotfish"))
	if rules := m.run("pilotfish-agent iptables show --live -o nft"); !strings.Contains(rules, uid) || !strings.Contains(rules, "22") {
		m.t.Errorf("the rules do not except the agent's user %s or port 22:\n%s", uid, rules)
	}
	m.runUnit(u, "ExecStart") // as after a restart of the unit
	m.runUnit(u, "ExecStop")
	m.fails("pilotfish-agent iptables verify --live")
}

func TestDebianPackageIsInstalledUsedAndRemoved(t *testing.T) {
	t.Parallel()
	need(t, "dpkg", "systemctl", "setpriv")
	m := newMachine(t)
	m.run("dpkg --install " + m.copyIn(oldPackages.deb))
	m.join()
	m.run("dpkg --install " + m.copyIn(newPackages.deb)) // an upgrade preserves the settings
	if text := m.run("cat /etc/pilotfish/agent.env; dpkg-query --show pilotfish"); !strings.Contains(text, "machine-1") || !strings.Contains(text, "1.0.0") {
		t.Errorf("after the upgrade: %s", text)
	}
	m.run("systemd-analyze verify /usr/lib/systemd/system/pilotfish-agent.service /usr/lib/systemd/system/pilotfish-redirect.service")
	m.startAgent()
	m.checkRedirection()
	m.run("dpkg --remove pilotfish")
	m.run("test -e /etc/pilotfish/cluster.env && test -e /var/lib/pilotfish/etc/istio/config/mesh")
	m.fails("ls /etc/systemd/system/multi-user.target.wants/ | grep pilotfish")
	m.fails("ls /usr/bin/pilotfish* /usr/lib/systemd/system/pilotfish*")
	m.run("dpkg --purge pilotfish")
	m.fails("ls -d /etc/pilotfish")
	m.fails("ls -d /var/lib/pilotfish")
}

func TestRPMPackageIsInstalledUsedAndRemoved(t *testing.T) {
	t.Parallel()
	need(t, "rpm", "systemctl", "setpriv")
	m := newMachine(t)
	// The packages of this machine are not in rpm's database, not even the shell.
	m.run("rpm --install --nodeps " + m.copyIn(oldPackages.rpm))
	m.join()
	m.run("rpm --upgrade --nodeps " + m.copyIn(newPackages.rpm))
	if text := m.run("cat /etc/pilotfish/agent.env; rpm --query pilotfish"); !strings.Contains(text, "machine-1") || !strings.Contains(text, "1.0.0") {
		t.Errorf("after the upgrade: %s", text)
	}
	m.run("rpm --verify --nodeps --noconfig pilotfish")
	m.startAgent()
	m.checkRedirection()
	m.run("rpm --erase pilotfish")
	m.run("test -e /etc/pilotfish/cluster.env")
	m.fails("ls /etc/systemd/system/multi-user.target.wants/ | grep pilotfish")
	m.fails("ls /usr/bin/pilotfish* /usr/lib/systemd/system/pilotfish*")
}
