package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const image = "pilotfish.test/pod:1"

// node is a container runtime in its own network namespace.
type node struct {
	dir     string
	cgroup  string // the path in every cgroup hierarchy
	bin     string // containerd, runc and the reference plugins
	output  *testenv.Buffer
	process *os.Process
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

// newNode starts containerd. conflist is the CNI configuration, in which DIR is replaced by the node's directory.
func newNode(t *testing.T, conflist string) *node {
	t.Helper()
	n := &node{bin: containerdBin(t), cgroup: fmt.Sprintf("pilotfish-e2e-%d", os.Getpid())}
	var err error
	if n.dir, err = os.MkdirTemp("", "pf-node"); err != nil { // short, because socket paths have a maximum length
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(n.dir) })
	t.Cleanup(func() { testenv.RemoveCgroups(n.cgroup, 5*time.Second) })
	n.prepare(t, conflist)
	n.start(t)
	n.importImage(t)
	return n
}

func containerdBin(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start containers")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "pilotfish", "containerd")
	if _, err := os.Stat(filepath.Join(dir, "complete")); err != nil {
		t.Skip("containerd is not here: run `make containerd`")
	}
	return filepath.Join(dir, "bin")
}

const containerdConfig = `version = 2
root = "DIR/root"
state = "DIR/state"
[grpc]
  address = "DIR/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "IMAGE"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "DIR/cni/bin"
    conf_dir = "DIR/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "BIN/runc"
`

// prepare creates the node's files. Plugins are copied, because tests change them while the node runs.
func (n *node) prepare(t *testing.T, conflist string) {
	t.Helper()
	names := strings.NewReplacer("DIR", n.dir, "BIN", n.bin, "IMAGE", image)
	for _, dir := range []string{"root", "state", "cni/bin", "cni/net.d", "run", "log"} {
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"config.toml": containerdConfig, "cni/net.d/10-pods.conflist": conflist} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(names.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range map[string]string{"bridge": n.bin, "host-local": n.bin, "loopback": n.bin,
		"pilotfish-cni": filepath.Dir(testenv.Bin(t, "pilotfish-cni"))} {
		program, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		testenv.Program(t, filepath.Join(n.dir, "cni/bin", name), program)
	}
}

// start runs containerd as PID 1 of a process namespace, so that all its children end with it.
func (n *node) start(t *testing.T) {
	t.Helper()
	script := `mount -t proc proc /proc && mount -t tmpfs tmpfs /run && exec "$0" --config "$1"`
	cmd := exec.Command("/bin/sh", "-c", script, filepath.Join(n.bin, "containerd"), filepath.Join(n.dir, "config.toml"))
	cmd.Env = []string{"PATH=" + n.bin + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
		Unshareflags: syscall.CLONE_NEWNS, // makes mounts private
	}
	n.output = &testenv.Buffer{}
	cmd.Stdout, cmd.Stderr = n.output, n.output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n.process = cmd.Process
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("containerd said:\n%s", n.output)
		}
	})
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.dir, "containerd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n.runtime, n.images = cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
	testenv.Eventually(t, "containerd is ready, and its network", func() error { return n.ready(t.Context()) })
}

func (n *node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	status, err := n.runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, condition := range status.Status.Conditions {
		if !condition.Status {
			return errors.New(condition.Type + ": " + condition.Message)
		}
	}
	return nil
}
