package cni

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// noted returns the names of the attachment files.
func (h *testNode) noted() []string {
	h.t.Helper()
	names, err := filepath.Glob(filepath.Join(h.dir, agentapi.AttachmentsDir, "*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return names
}

// collect runs GC with these pods as valid attachments. It first makes all attachment files older than minAttachmentAge.
func (h *testNode) collect(known ...*agentapi.Pod) {
	h.t.Helper()
	for _, path := range h.noted() {
		info, err := os.Lstat(path)
		if err == nil && info.Mode().IsRegular() {
			err = os.Chtimes(path, time.Time{}, info.ModTime().Add(-2*minAttachmentAge))
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
	h.collectNow(known...)
}

func (h *testNode) collectNow(known ...*agentapi.Pod) {
	h.t.Helper()
	if err := os.RemoveAll(filepath.Join(h.dir, "cache")); err != nil {
		h.t.Fatal(err)
	}
	valid := []types.GCAttachment{}
	for _, p := range known {
		valid = append(valid, types.GCAttachment{ContainerID: "c-" + p.Metadata.Name, IfName: "eth0"})
	}
	if err := h.libcni().GCNetworkList(h.t.Context(), h.list("1.1.0"), &libcni.GCArgs{ValidAttachments: valid}); err != nil {
		h.t.Errorf("GC: %v", err)
	}
}

// add runs ADD for a pod in a namespace.
func (h *testNode) add(p *agentapi.Pod, ns *testns.Namespace) {
	h.t.Helper()
	if _, err := h.libcni().AddNetworkList(h.t.Context(), h.list("1.1.0"), runtimeConf(p, ns)); err != nil {
		h.t.Fatal(err)
	}
}

// tproxyPod returns a pod with TPROXY, for which the plugin also installs routes.
func tproxyPod(name string) *agentapi.Pod {
	p := meshPod(name)
	p.Metadata.Annotations["sidecar.istio.io/interceptionMode"] = "TPROXY"
	group := int64(1337)
	p.Spec.Containers[1].SecurityContext.RunAsGroup = &group
	return p
}

func TestGCRemovesRulesOfSandboxesUnknownToTheRuntime(t *testing.T) {
	t.Setenv("PRIMARY_VERSION", "1.1.0")
	gone, lives, tproxy := meshPod("gone"), meshPod("lives"), tproxyPod("tproxy")
	h := newTestNode(t).withAgent(gone, lives, tproxy)
	networks := map[*agentapi.Pod]*testns.Namespace{}
	for _, p := range []*agentapi.Pod{gone, lives, tproxy} {
		networks[p] = podNetwork(t, "10.1.2.3/24")
		h.add(p, networks[p])
	}
	if n := len(h.noted()); n != 3 {
		t.Fatalf("%d of 3 sandboxes are noted", n)
	}
	h.collect(gone, lives, tproxy)
	if n := len(h.noted()); n != 3 || inForce(t, networks[gone]) == nil {
		t.Errorf("GC removed valid attachments: %d remain", n)
	}
	h.collect(lives)
	if len(h.noted()) != 1 {
		t.Errorf("attachment files: %v", h.noted())
	}
	for _, p := range []*agentapi.Pod{gone, tproxy} {
		if in, routing := inForce(t, networks[p]), strange(t, networks[p]); in != nil || len(routing) > 0 {
			t.Errorf("remaining rules and routes of %s: %v %v", p.Metadata.Name, in, routing)
		}
	}
	if inForce(t, networks[lives]) == nil {
		t.Error("a live sandbox lost its rules")
	}
}

// Processes that still run in a sandbox that is not in the runtime's list remain captured.
func TestGCLeavesRunningPodsRedirected(t *testing.T) {
	t.Setenv("PRIMARY_VERSION", "1.1.0")
	pod := meshPod("web")
	h := newTestNode(t).withAgent(pod)
	ns := podNetwork(t, "10.1.2.3/24")
	h.add(pod, ns)
	process := exec.Command("sleep", "600")
	ns.Start(t, process)
	h.collect()
	if inForce(t, ns) == nil || len(h.noted()) != 1 {
		t.Fatal("the traffic of a running process is no longer captured")
	}
	_ = process.Process.Kill()
	_, _ = process.Process.Wait()
	h.collect()
	if inForce(t, ns) != nil || len(h.noted()) > 0 {
		t.Error("the rules remain after the last process has exited")
	}
}

// The runtime's list may be older than a new sandbox, whose first process has not started yet.
func TestGCLeavesNewSandboxes(t *testing.T) {
	t.Setenv("PRIMARY_VERSION", "1.1.0")
	pod := meshPod("web")
	h := newTestNode(t).withAgent(pod)
	ns := podNetwork(t, "10.1.2.3/24")
	h.add(pod, ns)
	h.collectNow()
	if inForce(t, ns) == nil || len(h.noted()) != 1 {
		t.Error("the new sandbox lost its rules")
	}
}

// A virtual machine may run in a thread whose process is in another namespace.
func TestGCLeavesNamespaceOfASingleThreadRedirected(t *testing.T) {
	ns := testns.New(t)
	var stat unix.Stat_t
	if err := unix.Fstat(int(ns.Handle), &stat); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("LIVES_IN") != "" {
		_ = ns.Run(func() error {
			fmt.Println("in", stat.Dev, stat.Ino)
			_, _ = io.Copy(io.Discard, os.Stdin)
			return nil
		})
		return
	}
	id := nsID{uint64(stat.Dev), stat.Ino}
	if lives, err := hasProcesses(id); lives || err != nil {
		t.Fatalf("hasProcesses reports a process in an empty namespace: %v", err)
	}
	other := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	other.Env = append(os.Environ(), "LIVES_IN=1")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = other.Wait() }()
	if _, err := fmt.Fscanf(out, "in %d %d\n", &id.Device, &id.Inode); err != nil {
		t.Fatal(err)
	}
	if lives, err := hasProcesses(id); !lives || err != nil {
		t.Errorf("hasProcesses does not find the thread: %v", err)
	}
}

func TestGCOfOneNetworkLeavesSandboxesOfOtherNetworks(t *testing.T) {
	t.Setenv("PRIMARY_VERSION", "1.1.0")
	pod := meshPod("web")
	h := newTestNode(t).withAgent(pod)
	ns := podNetwork(t, "10.1.2.3/24")
	h.add(pod, ns)
	second := h.config("1.1.0")
	second["name"] = "storage"
	if answer := h.call("ADD", pod, netnsPath(ns), toJSON(t, second)); answer.err != nil {
		t.Fatal(answer.out)
	}
	h.collect()
	if inForce(t, ns) == nil || len(h.noted()) != 1 {
		t.Errorf("the pod lost its rules when one of its networks was removed: %v", h.noted())
	}
}

func TestGCLeavesNewSandboxAtAReusedPath(t *testing.T) {
	t.Setenv("PRIMARY_VERSION", "1.1.0")
	old, next := meshPod("old"), meshPod("next")
	h := newTestNode(t).withAgent(old, next)
	first, second := testns.New(t), testns.New(t)
	path := filepath.Join(h.dir, "netns")
	add := func(p *agentapi.Pod, ns *testns.Namespace) {
		t.Helper()
		_ = os.Remove(path)
		if err := os.Symlink(netnsPath(ns), path); err != nil {
			t.Fatal(err)
		}
		if answer := h.call("ADD", p, path, h.withPrevious("1.1.0")); answer.err != nil {
			t.Fatal(answer.out)
		}
	}
	add(old, first)
	add(next, second)
	h.collect(next)
	if inForce(t, second) == nil || len(h.noted()) != 1 {
		t.Errorf("the new sandbox with the same path lost its rules: %v", h.noted())
	}
}

// GC succeeds with any content of the attachments directory. It does not change sandboxes without a valid attachment file.
func TestGCWithoutAttachmentRecordsRemovesNothing(t *testing.T) {
	t.Setenv("PRIMARY_VERSION", "1.1.0")
	pod := meshPod("web")
	h := newTestNode(t).withAgent(pod)
	ns := testns.New(t)
	h.add(pod, ns)
	for name, config := range map[string]string{
		"the runtime says nothing": `{"cniVersion":"1.1.0","name":"pods","cni_agent_run_dir":%q}`,
		"null":                     `{"cniVersion":"1.1.0","name":"pods","cni_agent_run_dir":%q,"cni.dev/valid-attachments":null}`,
		"another network":          `{"cniVersion":"1.1.0","name":"other","cni_agent_run_dir":%q,"cni.dev/valid-attachments":[]}`,
	} {
		if answer := h.call("GC", pod, "", fmt.Appendf(nil, config, h.dir)); answer.err != nil || inForce(t, ns) == nil {
			t.Errorf("%s: %v", name, answer.err)
		}
	}
	dir := filepath.Join(h.dir, agentapi.AttachmentsDir)
	long := filepath.Join(dir, "long")
	for path, text := range map[string]string{long: strings.Repeat("x", 1<<20), filepath.Join(dir, "half"): `{"network":"po`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(long, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.collectNow(pod)
	if _, err := os.Stat(long); err == nil || len(h.noted()) != 3 {
		t.Errorf("attachment files after GC with incomplete old and new files: %v", h.noted())
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.collect()
	if inForce(t, ns) == nil {
		t.Error("GC removed the rules of a sandbox without an attachment file")
	}
	h.add(pod, ns) // ADD succeeds too
}
