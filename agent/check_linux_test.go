package agent

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// checkReport is the output of `check -o json`.
type checkReport struct {
	OK     bool          `json:"ok" yaml:"ok"`
	Checks []CheckResult `json:"checks" yaml:"checks"`
}

func (c checkReport) find(name string) CheckResult {
	for _, one := range c.Checks {
		if one.Name == name {
			return one
		}
	}
	return CheckResult{}
}

// check runs the command check, and verifies that its exit code matches its report. It returns an error if the agent does
// not respond yet.
func (r *agentProcess) check() (c checkReport, err error) {
	r.t.Helper()
	out, code := r.command("check", "-o", "json")
	if strings.Contains(out, "no agent responds") {
		return c, errors.New(out)
	}
	text, _, _ := strings.Cut(out, "\npilotfish-agent: ")
	if err := json.Unmarshal([]byte(text), &c); err != nil || c.OK != (code == 0) || code > 1 {
		r.t.Fatalf("check: code %d, %v:\n%s", code, err, out)
	}
	return c, nil
}

// waitCheck waits until a check has this state, and until its detail and remedy contain the words.
func (r *agentProcess) waitCheck(name string, state CheckState, detail, remedy string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s is %s", name, state), func() error {
		c, err := r.check()
		if got := c.find(name); err == nil && (got.State != state || !strings.Contains(got.Detail, detail) || !strings.Contains(got.Remedy, remedy)) {
			err = fmt.Errorf("%+v", c.Checks)
		}
		return err
	})
}

// waitOnlyFailures waits until exactly these checks fail.
func (r *agentProcess) waitOnlyFailures(names ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("only %q fail", names), func() error {
		report, err := r.check()
		if err != nil {
			return err
		}
		var failed []string
		for _, c := range report.Checks {
			if c.State == CheckFailed {
				failed = append(failed, c.Name)
			}
		}
		if fmt.Sprint(failed) != fmt.Sprint(names) {
			return fmt.Errorf("%q fail", failed)
		}
		return nil
	})
}

func TestCheckOfHealthyAgentPasses(t *testing.T) {
	t.Parallel()
	s := newDNSSetup(t, "127.157.1.1")
	s.cp.names.Store(nameTable([2]string{"reviews.books", "10.96.0.7"}))
	s.env = append(s.env, "ISTIO_META_INTERCEPTION_MODE=NONE")
	r := s.startReady(t)
	r.waitOnlyFailures()
	c, err := r.check()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		CheckIdentity:      "spiffe://cluster.local/ns/books/sa/shop",
		CheckControlPlane:  "connected to " + s.cp.address,
		CheckCertificates:  "2 certificates; ",
		CheckConfiguration: "no rejected resource",
		CheckDNS:           "answers on 127.157.1.1:15053",
		CheckEnvoy:         testenv.EnvoyVersion,
	} {
		if got := c.find(name); got.State != CheckPassed || !strings.Contains(got.Detail, want) || got.Remedy != "" {
			t.Errorf("%s: %+v, want %q", name, got, want)
		}
	}
	if got := c.find(CheckRedirection); got.State != CheckSkipped {
		t.Errorf("without redirection: %+v", got)
	}
	out, code := r.command("check")
	if code != 0 || !strings.Contains(out, "✓  control plane  connected to ") || strings.ContainsAny(out, "✗\x1b") {
		t.Errorf("check: code %d\n%s", code, out)
	}
	out, code = r.command("check", "-o", "yaml")
	var parsed checkReport
	if err := yaml.Unmarshal([]byte(out), &parsed); err != nil || code != 0 || !parsed.OK || len(parsed.Checks) != len(c.Checks) {
		t.Errorf("check -o yaml: code %d, %v\n%s", code, err, out)
	}
}

func TestCheckReportsLostControlPlane(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.157.2.1")
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	stop()
	r.waitCheck(CheckControlPlane, CheckFailed, s.cp.address, "discoveryAddress is correct")
	out, code := r.command("check")
	if code != 1 || !strings.Contains(out, "✗  control plane  not connected to "+s.cp.address) || !strings.Contains(out, "\nRemedies\n") ||
		!strings.Contains(out, "  control plane: check that the control plane runs") || !strings.Contains(out, "failed") {
		t.Errorf("check: code %d\n%s", code, out)
	}
	s.cp.start(t)
	r.waitOnlyFailures()
}

func TestCheckReportsRejectedConfiguration(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.157.3.1")
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	stop()
	s.cp.sendRejected.Store(true)
	s.cp.start(t)
	r.waitCheck(CheckConfiguration, CheckFailed, "Envoy rejected its newest Listener configuration", "`xds status` shows the rejected resources")
	r.waitOnlyFailures(CheckConfiguration)
}

func TestCheckReportsMissingCertificate(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.157.4.1")
	other := "another-token"
	s.cp.token.Store(&other)
	s.cp.start(t)
	r := s.start(t)
	r.waitCheck(CheckCertificates, CheckFailed, "Unauthenticated", "accepts the token")
	r.waitCheck(CheckIdentity, CheckFailed, "no certificate for spiffe://cluster.local/ns/books/sa/shop", "accepts the token")
}

func TestCheckReportsForeignIdentity(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.157.5.1")
	key := newKey(t)
	leaf, chain := s.cp.sign(t, &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/books/sa/another"}}}, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil || len(leaf.URIs) != 1 {
		t.Fatal(err)
	}
	const dir = "var/run/secrets/workload-spiffe-credentials/"
	s.write(t, dir+"cert-chain.pem", string(chain))
	s.write(t, dir+"key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	s.write(t, dir+"root-cert.pem", string(s.cp.rootPEM))
	s.cp.start(t)
	r := s.start(t)
	r.waitCheck(CheckIdentity, CheckFailed, "the certificate is for spiffe://cluster.local/ns/books/sa/another, not for spiffe://cluster.local/ns/books/sa/shop", "service account")
}

func TestCheckReportsMissingNames(t *testing.T) {
	t.Parallel()
	s := newDNSSetup(t, "127.157.6.1")
	s.cp.start(t)
	r := s.start(t)
	r.waitCheck(CheckDNS, CheckFailed, "not sent a name table yet", "sends name tables")
	r.waitOnlyFailures(CheckDNS)
}

func TestCheckReportsFrozenEnvoy(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.157.7.1")
	r := s.startReady(t)
	pid := r.envoy()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.waitCheck(CheckEnvoy, CheckFailed, "does not respond", "")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.waitOnlyFailures()
}

// The agent runs in a network namespace of its own, and check runs outside.
func TestCheckReportsMissingRedirection(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can create network namespaces")
	}
	program := testenv.Bin(t, "pilotfish-iptables")
	s := newSetup(t, "127.157.8.1")
	s.env = append(s.env, "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	inside := *s
	inside.within = []string{"unshare", "--net", "--", "sh", "-ec", `ip link set lo up; pilotfish-iptables -b "*" -i "*" -u 1337 >&2; exec "$0" "$@"`}
	r := inside.start(t)
	r.within = nil
	r.waitCheck(CheckRedirection, CheckPassed, "redirect to the ports 15001, 15006", "")
	clean := exec.Command(program, "clean", "--network-namespace", fmt.Sprintf("/proc/%d/ns/net", r.cmd.Process.Pid))
	if out, err := clean.CombinedOutput(); err != nil {
		t.Fatalf("clean: %v\n%s", err, out)
	}
	r.waitCheck(CheckRedirection, CheckFailed, "no rules are installed in this namespace", "run `iptables` with the pod's options again")
}

// Users without the privilege to read rules get the other results.
func TestCheckWithoutPrivilegesSkipsRedirection(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can drop a privilege")
	}
	s := newSetup(t, "127.157.9.1")
	s.env = append(s.env, "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "PATH="+filepath.Dir(testenv.Bin(t, "pilotfish-iptables"))+":"+os.Getenv("PATH"))
	r := s.startReady(t)
	r.within = []string{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", "--"}
	r.waitCheck(CheckRedirection, CheckSkipped, "as root with CAP_NET_ADMIN", "")
}

func TestCheckWithoutAgentFails(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.157.10.1")
	s.args = []string{"check"}
	r := s.start(t)
	r.checkExit(1, "no agent responds at ./etc/istio/proxy/control")
}
