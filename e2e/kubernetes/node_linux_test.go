package kubernetes

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

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// node is a machine of the cluster: a container runtime and a kubelet, with disks of its own that outlive a reboot.
type node struct {
	cluster *cluster
	nodeConfig
	net     *process // holds its network namespace
	dir     string   // its disks: etc, opt and var
	runtime string   // folder of containerd, runc and the reference plugins
	cgroup  string   // in every hierarchy
	init    *process
	parts   map[string]*process
}

// nodeConfig is the name and the addresses of a node.
type nodeConfig struct {
	name, address, address6, kubelet string // kubelet is the name of its kubeconfig
	pods, pods6                      string
}

// The nodes: the first is on the network of the control plane, the second joins in one test.
var (
	first  = nodeConfig{nodeName, nodeAddress, nodeAddress6, "kubelet", "10.88.0.0/16", "fd88::/64"}
	second = nodeConfig{"node-2", "10.90.0.2", "fd90::2", "kubelet-2", "10.89.0.0/16", "fd89::/64"}
)

// network is what a primary CNI plugin leaves.
const network = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"PODS4"}],[{"subnet":"PODS6"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}]}`

const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + podImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`

const kubeletConfig = `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration",
"containerRuntimeEndpoint":"unix:///run/containerd/containerd.sock","cgroupDriver":"cgroupfs","cgroupRoot":"/CGROUP","failCgroupV1":false,
"enforceNodeAllocatable":[],"localStorageCapacityIsolation":false,"failSwapOn":false,"resolvConf":"","oomScoreAdj":0,
"imageGCHighThresholdPercent":100,"imageGCLowThresholdPercent":99,"evictionHard":{"memory.available":"1Mi"},
"authentication":{"anonymous":{"enabled":false},"webhook":{"enabled":true},"x509":{"clientCAFile":"AUTHORITY"}},"authorization":{"mode":"Webhook"},
"syncFrequency":"10s","nodeStatusReportFrequency":"10s","registerWithTaints":TAINTS}`

// list is the node's.
func (p nodeConfig) list() string {
	return strings.NewReplacer("PODS4", p.pods, "PODS6", p.pods6).Replace(network)
}

func (c *cluster) startNode(t *testing.T, at nodeConfig, net *process, taints string) *node {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{cluster: c, nodeConfig: at, net: net, dir: filepath.Join(c.dir, at.name), runtime: filepath.Join(cache, "pilotfish", "containerd", "bin"),
		cgroup: fmt.Sprintf("pilotfish-kube-%d-%s", os.Getpid(), at.name), parts: map[string]*process{}}
	if _, err := os.Stat(filepath.Join(n.runtime, "containerd")); err != nil {
		t.Skip("containerd is not here: run `make containerd`")
	}
	c.nodes = append(c.nodes, n)
	n.layOut(t, taints)
	n.boot(t)
	return n
}

// layOut prepares the node's disks.
func (n *node) layOut(t *testing.T, taints string) {
	t.Helper()
	for _, dir := range []string{"etc/cni/net.d", "etc/containerd", "work", "opt/cni/bin", "var/lib", "var/log", "var/tmp", "var/cache"} {
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(n.dir, "var/run")); err != nil {
		t.Fatal(err)
	}
	n.configure(t, taints)
	for name, text := range map[string]string{"etc/cni/net.d/10-pods.conflist": n.list(), "etc/containerd/config.toml": containerdConfig} {
		n.write(t, name, text)
	}
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		program, err := os.ReadFile(filepath.Join(n.runtime, name))
		if err != nil {
			t.Fatal(err)
		}
		testenv.Program(t, filepath.Join(n.dir, "opt/cni/bin", name), program)
	}
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if len(roots) == 0 {
		roots = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	for _, root := range roots {
		if err := os.Mkdir(filepath.Join(filepath.Dir(root), n.cgroup), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// configure sets the kubelet up, which registers its node with these taints.
func (n *node) configure(t *testing.T, taints string) {
	t.Helper()
	n.write(t, "etc/kubelet.json", strings.NewReplacer("CGROUP", n.cgroup, "AUTHORITY", n.cluster.pki.path("ca.crt"), "TAINTS", taints).Replace(kubeletConfig))
}

// write writes a file of the node's.
func (n *node) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// boot starts the node's first process and, within its namespaces, containerd and the kubelet.
func (n *node) boot(t *testing.T) {
	t.Helper()
	script := `set -e
mount --make-rshared /
mount -t proc proc /proc
mount --bind "$0/var" /var
mount --bind "$0/opt" /opt
mount -t tmpfs tmpfs /run
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$0/etc,workdir=$0/work" /etc
hostname ` + n.name + `
echo ready
while :; do sleep 1000 & wait $!; done`
	cmd := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", n.net.cmd.Process.Pid), "--", "/bin/bash", "-c", script, n.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Unshareflags: syscall.CLONE_NEWNS, // makes mounts private
	}
	n.init = n.cluster.start(t, n.name, cmd)
	n.cluster.waitFor(t, "the node's first process", func() error {
		if !strings.Contains(n.init.output.String(), "ready") {
			return errors.New(n.init.output.String())
		}
		return nil
	})
	n.startContainerd(t)
	n.startPart(t, filepath.Join(n.cluster.bin, "kubelet"), "--config=/etc/kubelet.json", "--kubeconfig="+n.cluster.pki.path(n.kubelet+".kubeconfig"),
		"--hostname-override="+n.name, "--node-ip="+n.address+","+n.address6)
}

func (n *node) startContainerd(t *testing.T) {
	t.Helper()
	n.startPart(t, filepath.Join(n.runtime, "containerd"))
	n.cluster.waitFor(t, "containerd takes images", func() error {
		for _, archive := range n.cluster.images {
			if out, err := n.run("ctr", "--namespace", "k8s.io", "images", "import", archive); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		return nil
	})
}

// enter runs a program in all of the node's namespaces.
func (n *node) enter(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{fmt.Sprintf("--target=%d", n.init.cmd.Process.Pid),
		"--mount", "--pid", "--net", "--ipc", "--uts", "--"}, args...)...)
	cmd.Env = []string{"PATH=" + n.runtime + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	return cmd
}

// run runs a program on the node and returns its output.
func (n *node) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := n.enter(ctx, args...).CombinedOutput()
	return string(out), err
}

// startPart starts a program on the node, whose process on it stopPart finds by its name.
func (n *node) startPart(t *testing.T, program string, args ...string) *process {
	t.Helper()
	name := filepath.Base(program)
	cmd := n.enter(context.Background(), append([]string{"/bin/sh", "-c", `echo $$ >/run/` + name + `.pid; exec "$0" "$@"`, program}, args...)...)
	p := n.cluster.start(t, name, cmd)
	n.parts[name] = p
	return p
}

// stopPart kills a component of the node, since no other component may rely on a clean end.
func (n *node) stopPart(t *testing.T, name string) {
	t.Helper()
	n.parts[name].killed = true
	if out, err := n.run("/bin/sh", "-c", "kill -9 $(cat /run/"+name+".pid)"); err != nil {
		t.Fatalf("killing %s: %v: %s", name, err, out)
	}
	<-n.parts[name].ended
}

// kill simulates a power loss of the node: all its processes end, and the contents of its memory are lost.
func (n *node) kill() {
	if n.init == nil {
		return
	}
	for _, p := range n.parts {
		p.killed = true
	}
	n.init.kill()
	for _, p := range n.parts {
		<-p.ended
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = enterNamespaces(ctx, n.net, "ip", "link", "delete", "cni0").Run()
}
