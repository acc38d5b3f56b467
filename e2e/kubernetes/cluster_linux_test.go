package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Names and addresses within the cluster's network namespace.
const (
	nodeName       = "node-1"
	nodeAddress    = "10.90.0.1"
	nodeAddress6   = "fd90::1"
	serviceAddress = "10.96.0.1" // of the API server as pods know it; kube-proxy translates it
)

// waitTimeout limits each wait: a kubelet may back off for minutes.
const waitTimeout = 3 * time.Minute

// cluster is a control plane and one node.
type cluster struct {
	dir    string
	bin    string // etcd, API server and so on
	pki    *pki
	parts  []*process
	net    *process          // holds the network namespace
	node   *node             // the first
	nodes  []*node           // that run
	images map[string]string // archives by name
}

var shared *cluster

func TestMain(m *testing.M) {
	code := m.Run()
	if shared != nil {
		shared.close()
	}
	os.Exit(code)
}

// sharedCluster returns the cluster that all tests share, since its start is slow.
func sharedCluster(t *testing.T) *cluster {
	t.Helper()
	if shared == nil {
		shared = startCluster(t)
	}
	c := shared
	t.Cleanup(func() {
		if t.Failed() {
			c.logOutput(t)
		}
	})
	return c
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "pf-kube") // short, for the sockets in it
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: dir, bin: kubernetesBin(t)}
	defer func() {
		if t.Failed() {
			c.logOutput(t)
			c.close()
		}
	}()
	c.pki = newPKI(t, dir)
	c.createNetwork(t)
	c.startControlPlane(t)
	c.images = buildImages(t, filepath.Join(dir, "images"))
	c.node = c.startNode(t, first, c.net, "[]")
	c.waitFor(t, "the node is ready", func() error {
		return c.checkField("node/"+nodeName, `{.status.conditions[?(@.type=="Ready")].status}`, "True")
	})
	c.startProxy(t)
	shared = c
	return c
}

// kubernetesBin is the folder of what scripts/kubernetes.sh builds.
func kubernetesBin(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a cluster")
	}
	out, err := exec.Command(filepath.Join(testenv.Root(), "scripts", "kubernetes.sh"), "--print").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(out))
	for _, program := range []string{"controlplane", "node"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			t.Skip("Kubernetes is not built: run `make kubernetes`")
		}
	}
	return dir
}

// createNetwork creates the network namespace, with the addresses of the node.
func (c *cluster) createNetwork(t *testing.T) {
	t.Helper()
	script := `ip link set lo up && ip link add node0 type bridge && ip addr add ` + nodeAddress + `/24 dev node0 && ip link set node0 up && ip addr add ` + nodeAddress6 + `/64 dev node0 nodad && ip route add default dev node0 && ` +
		`sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 && echo ready && exec sleep infinity`
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	c.net = c.start(t, "network", cmd)
	c.waitFor(t, "the network", func() error {
		if !strings.Contains(c.net.output.String(), "ready") {
			return errors.New(c.net.output.String())
		}
		return nil
	})
}

// auditPolicy makes the API server log the requests of the node agent and the plugin.
const auditPolicy = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],
"rules":[{"level":"Metadata","users":["system:serviceaccount:pilotfish-system:pilotfish-cni"]},{"level":"None"}]}`

func (c *cluster) startControlPlane(t *testing.T) {
	t.Helper()
	file := c.pki.path
	c.pki.write(t, "audit.json", []byte(auditPolicy))
	c.startPart(t, "etcd", filepath.Join(c.dir, "etcd"), filepath.Join(c.dir, "etcd.sock"))
	c.startPart(t, "kube-apiserver", "--etcd-servers=unix://"+filepath.Join(c.dir, "etcd.sock"), "--secure-port=443", "--advertise-address="+nodeAddress,
		"--service-cluster-ip-range=10.96.0.0/24,fd96::/112", "--authorization-mode=Node,RBAC", "--client-ca-file="+file("ca.crt"), "--allow-privileged",
		"--tls-cert-file="+file("server.crt"), "--tls-private-key-file="+file("server.key"), "--cert-dir="+c.dir,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file="+file("accounts.key"),
		"--service-account-key-file="+file("accounts.pub"),
		"--kubelet-client-certificate="+file("admin.crt"), "--kubelet-client-key="+file("admin.key"),
		"--profiling=false", "--kubelet-preferred-address-types=InternalIP",
		"--audit-policy-file="+file("audit.json"), "--audit-log-path="+file("audit.log"), "--audit-log-mode=blocking")
	c.waitFor(t, "the API server is ready", func() error {
		out, err := c.kubectl("get", "--raw", "/readyz")
		return errors.Join(err, c.apiError(out))
	})
	c.startPart(t, "kube-controller-manager", "--kubeconfig="+file("controller.kubeconfig"), "--use-service-account-credentials",
		"--service-account-private-key-file="+file("accounts.key"), "--root-ca-file="+file("ca.crt"), "--leader-elect=false",
		"--cluster-signing-cert-file="+file("ca.crt"), "--cluster-signing-key-file="+file("ca.key"), "--profiling=false")
	c.startPart(t, "kube-scheduler", "--kubeconfig="+file("scheduler.kubeconfig"), "--leader-elect=false", "--profiling=false")
}

func (c *cluster) apiError(out string) error {
	if out == "ok" {
		return nil
	}
	return errors.New(out)
}

// process is a part of the cluster.
type process struct {
	name   string
	cmd    *exec.Cmd
	output *testenv.Buffer
	ended  chan struct{}
	killed bool // on purpose
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// start starts a program that ends with the test.
func (c *cluster) start(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, cmd: cmd, output: &testenv.Buffer{}, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the end of this thread would trigger the parent-death signal
		started <- cmd.Start()
		if cmd.Process != nil {
			_ = cmd.Wait()
		}
		close(p.ended)
		runtime.UnlockOSThread()
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	c.parts = append(c.parts, p)
	return p
}

func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// startPart starts a program of Kubernetes in the cluster's network namespace.
func (c *cluster) startPart(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return c.start(t, name, c.inNetwork(context.Background(), append([]string{filepath.Join(c.bin, name)}, args...)...))
}

func (c *cluster) inNetwork(ctx context.Context, args ...string) *exec.Cmd {
	return enterNamespaces(ctx, c.net, args...)
}

// enterNamespaces runs a program in the network namespace of a process.
func enterNamespaces(ctx context.Context, p *process, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", p.cmd.Process.Pid), "--"}, args...)...)
}

// kubectl is what a person would do.
func (c *cluster) kubectl(args ...string) (string, error) { return c.kubectlWith("", args...) }

func (c *cluster) kubectlWith(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := c.inNetwork(ctx, append([]string{filepath.Join(c.bin, "kubectl"), "--kubeconfig=" + c.pki.path("admin.kubeconfig")}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(os.Environ(), "HOME="+c.dir)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (c *cluster) mustKubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.kubectl(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cluster) apply(t *testing.T, manifest string) {
	t.Helper()
	if out, err := c.kubectlWith(manifest, "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// checkField returns an error unless a field of an object has the value.
func (c *cluster) checkField(object, path, want string, args ...string) error {
	got, err := c.kubectl(append([]string{"get", object, "-o", "jsonpath=" + path}, args...)...)
	if err == nil && got != want {
		err = fmt.Errorf("%s of %s is %q, want %q", path, object, got, want)
	}
	return err
}

// waitFor waits until check returns nil, as long as all parts of the cluster run.
func (c *cluster) waitFor(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(waitTimeout)
	for {
		err := check()
		if err == nil {
			return
		}
		for _, p := range c.parts {
			if p.hasEnded() && !p.killed {
				t.Fatalf("%s: %s has ended: %s", what, p.name, p.output)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, waitTimeout, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (c *cluster) close() {
	for _, n := range c.nodes {
		n.kill()
		testenv.RemoveCgroups(n.cgroup, 20*time.Second)
	}
	for i := len(c.parts) - 1; i >= 0; i-- {
		c.parts[i].kill()
	}
	_ = os.RemoveAll(c.dir)
}

// logOutput logs the end of each component's output.
func (c *cluster) logOutput(t *testing.T) {
	for _, p := range c.parts {
		text := p.output.String()
		if maxLength := 6000; len(text) > maxLength {
			text = "…" + text[len(text)-maxLength:]
		}
		t.Logf("%s said:\n%s", p.name, text)
	}
}
