package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// pod is one workload: an application in the test's own process, and an agent with its Envoy.
type pod struct {
	name  string
	dir   string // the agent's working directory
	proxy string // the sidecar's address
	local string // the application's address
	app   string // label
	env   map[string]string
	wrap  func(args []string) ([]string, *syscall.SysProcAttr) // what the agent is started through; nil for nothing

	agent  *exec.Cmd
	output *testenv.Buffer
	ended  chan struct{} // closed when the agent has ended
	code   int           // its exit code, once it has
	began  time.Time
}

// pods are numbered over all tests of the package, so that no two share an address.
var pods atomic.Int64

// planeAddress is the address and the authority of a control plane, which a pod is configured with.
type planeAddress interface {
	Authority() *ca.Authority
	SecureAddr() netip.AddrPort
}

// newPod lays out the files that a pod has by contract. Its agent is started by start.
func newPod(t testing.TB, p planeAddress, app string) *pod {
	t.Helper()
	n := pods.Add(1)
	pod := &pod{
		name: fmt.Sprintf("%s-%d", app, n), app: app, dir: t.TempDir(), output: &testenv.Buffer{}, ended: make(chan struct{}),
		proxy: fmt.Sprintf("127.%d.%d.1", 200+n/250, n%250+1), local: fmt.Sprintf("127.%d.%d.2", 200+n/250, n%250+1),
	}
	token, err := p.Authority().IssueToken("default", "default", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"var/run/secrets/tokens/istio-token":        token,
		"var/run/secrets/istio/root-cert.pem":       string(p.Authority().RootPEM()),
		"etc/istio/pod/labels":                      "app=\"" + app + "\"\n",
		"etc/istio/pod/annotations":                 "",
		"var/run/secrets/workload-spiffe-uds/.keep": "",
	} {
		file := filepath.Join(pod.dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	proxyConfig, err := json.Marshal(map[string]any{"discoveryAddress": p.SecureAddr().String(), "concurrency": 1})
	if err != nil {
		t.Fatal(err)
	}
	pod.env = map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": os.Getenv("HOME"), "XDG_CACHE_HOME": os.Getenv("XDG_CACHE_HOME"),
		"INSTANCE_IP": pod.proxy, "POD_NAME": pod.name, "POD_NAMESPACE": "default", "SERVICE_ACCOUNT": "default",
		"PROXY_CONFIG": string(proxyConfig), "CA_ADDR": p.SecureAddr().String(), "ECC_SIGNATURE_ALGORITHM": "ECDSA",
		"ENVOY_PATH": testenv.Envoy(t), "PROXY_BIND_ADDRESS": pod.proxy,
		"ISTIO_META_INTERCEPTION_MODE": "NONE", "ISTIO_META_APP_ADDRESS": pod.local, "ISTIO_META_CLUSTER_ID": "Kubernetes",
	}
	return pod
}

func (p *pod) key() config.Key {
	return config.Key{Kind: config.WorkloadEntry, Namespace: "default", Name: p.name}
}

func (p *pod) labels() map[string]string {
	return map[string]string{"app": p.app, "security.istio.io/tlsMode": "istio"}
}

// set overrides variables of the agent's environment, before start.
func (p *pod) set(env map[string]string) *pod {
	maps.Copy(p.env, env)
	return p
}

// command is one of the agent's, as a container of the pod would run it.
func (p *pod) command(t testing.TB, args ...string) *exec.Cmd {
	cmd := exec.Command(testenv.Bin(t, "pilotfish-agent"), args...)
	cmd.Dir = p.dir
	for name, value := range p.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// start starts the agent. It ends with the test in any case.
func (p *pod) start(t testing.TB, args ...string) *pod {
	t.Helper()
	p.agent = p.command(t, append([]string{"proxy", "sidecar"}, args...)...)
	if p.wrap != nil {
		p.agent.Args, p.agent.SysProcAttr = p.wrap(append([]string{p.agent.Path}, p.agent.Args[1:]...))
		p.agent.Path = p.agent.Args[0]
	}
	p.agent.Stdout, p.agent.Stderr = p.output, p.output
	p.began = time.Now()
	if err := p.agent.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.agent.Wait() // how it ended is in its state
		p.code = p.agent.ProcessState.ExitCode()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.agent.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s (%s):\n%s", p.name, p.proxy, p.output.String())
		}
	})
	return p
}

// probe is one GET, as a kubelet makes it.
func (p *pod) probe(port int, path string, timeout time.Duration) (int, string, error) {
	client := http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(fmt.Sprintf("http://%s:%d%s", p.proxy, port, path))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return resp.StatusCode, string(body), err
}

func (p *pod) waitReady(t testing.TB) *pod {
	t.Helper()
	testenv.Eventually(t, p.name+" is ready", func() error {
		select {
		case <-p.ended:
			t.Fatalf("%s ended with %d:\n%s", p.name, p.code, p.output.String())
		default:
		}
		code, body, err := p.probe(15021, "/healthz/ready", time.Second)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	})
	return p
}

func (p *pod) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.agent.Process.Signal(s); err != nil {
		t.Fatalf("%s: signal %v: %v", p.name, s, err)
	}
}

// wait waits until the agent exits and returns its exit code.
func (p *pod) wait(t testing.TB, patience time.Duration) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.code
	case <-time.After(patience):
		t.Fatalf("%s has not ended after %v; %s\n%s", p.name, patience, p.dumpStacks(), p.output.String())
		return -1
	}
}

// dumpStacks returns where the threads of the agent's children wait in the kernel. It ends the agent with SIGQUIT, so
// that the agent writes its goroutines' stacks to its output.
func (p *pod) dumpStacks() string {
	var text strings.Builder
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		status, _ := os.ReadFile(filepath.Join(process, "status"))
		if !strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", p.agent.Process.Pid)) {
			continue
		}
		threads, _ := filepath.Glob(filepath.Join(process, "task", "*"))
		for _, thread := range threads {
			stat, _ := os.ReadFile(filepath.Join(thread, "stat"))
			wchan, _ := os.ReadFile(filepath.Join(thread, "wchan"))
			fmt.Fprintf(&text, "%s waits in %s: %.60s\n", thread, wchan, stat)
		}
	}
	_ = p.agent.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
	}
	return text.String()
}

// upstream is where the sidecar listens for the shop's TCP port.
func (p *pod) upstream() string { return strings.TrimSuffix(p.proxy, ".1") + ".16:8083" }
