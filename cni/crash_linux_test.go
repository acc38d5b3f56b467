package cni

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

// inForce returns the rules that are installed in a namespace.
func inForce(t testing.TB, ns *testns.Namespace) *iptables.RuleSet {
	t.Helper()
	b, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got.Rules
}

// A plugin that is killed during ADD leaves either the old rules or all new rules, never a part of them. The next ADD in
// the same sandbox installs all rules.
func TestKilledADDLeavesOldOrNewRules(t *testing.T) {
	for _, mode := range []string{"REDIRECT", "TPROXY"} {
		t.Run(mode, func(t *testing.T) {
			pod := meshPod("web")
			pod.Metadata.Annotations["sidecar.istio.io/interceptionMode"] = mode
			h := newTestNode(t).withAgent(pod)
			fresh := podNetwork(t, "10.9.0.5/24")
			if answer := h.call("ADD", pod, netnsPath(fresh), h.withPrevious("1.0.0")); answer.err != nil {
				t.Fatal(answer.out)
			}
			whole := inForce(t, fresh)
			step := 1
			for ; step < 50 && h.killedAt(pod, step, whole); step++ {
			}
			if want := map[string]int{"REDIRECT": 4, "TPROXY": 6}[mode]; step <= want {
				t.Errorf("ADD has only %d steps, want at least %d", step-1, want)
			}
			left, err := filepath.Glob(filepath.Join(h.dir, "*"))
			if err != nil || !slices.Equal(left, []string{filepath.Join(h.dir, agentapi.AttachmentsDir), h.bin, filepath.Join(h.dir, "pilotfish-cni.sock")}) {
				t.Errorf("temporary files remain: %v (%v)", left, err)
			}
			if noted := h.noted(); len(noted) != 1 { // all sandboxes have the same name, so there is one attachment file
				t.Errorf("attachment files: %v", noted)
			}
		})
	}
}

// killedAt kills one ADD in a new sandbox before a step and checks the state. It reports whether the step exists.
func (h *testNode) killedAt(pod *agentapi.Pod, step int, whole *iptables.RuleSet) bool {
	h.t.Helper()
	ns := podNetwork(h.t, "10.9.0.5/24")
	answer := h.call("ADD", pod, netnsPath(ns), h.withPrevious("1.0.0"), fmt.Sprintf("%s=%d", crashAt, step))
	if answer.err == nil {
		return false
	}
	if answer.out != "" {
		h.t.Errorf("step %d: the plugin was not killed and responded: %s", step, answer.out)
	}
	if got := inForce(h.t, ns); got != nil && !reflect.DeepEqual(got, whole) {
		h.t.Errorf("step %d: only a part of the rules is installed: %+v", step, got)
	}
	if answer := h.call("ADD", pod, netnsPath(ns), h.withPrevious("1.0.0")); answer.err != nil {
		h.t.Errorf("step %d: the next ADD failed: %s", step, answer.out)
	}
	if got := inForce(h.t, ns); !reflect.DeepEqual(got, whole) {
		h.t.Errorf("step %d: rules after the next ADD: %+v", step, got)
	}
	return true
}

// An ADD that is killed before it installs rules may leave routes. DEL removes them.
func TestDELRemovesTheRoutingOfAKilledADD(t *testing.T) {
	pod := meshPod("web")
	pod.Metadata.Annotations["sidecar.istio.io/interceptionMode"] = "TPROXY"
	h := newTestNode(t).withAgent(pod)
	healed := 0
	for step := 1; ; step++ {
		ns := podNetwork(t, "10.9.0.5/24")
		if answer := h.call("ADD", pod, netnsPath(ns), h.withPrevious("1.0.0"), fmt.Sprintf("%s=%d", crashAt, step)); answer.err == nil {
			break
		}
		before, rules := strange(t, ns), inForce(t, ns)
		if answer := h.call("DEL", pod, netnsPath(ns), h.withPrevious("1.0.0")); answer.err != nil {
			t.Fatalf("killed at step %d: DEL failed: %s", step, answer.out)
		}
		if after := strange(t, ns); len(after) > 0 {
			t.Errorf("killed at step %d: after DEL, %q remain", step, after)
		}
		if got := inForce(t, ns); !reflect.DeepEqual(got, rules) {
			t.Errorf("killed at step %d: after DEL the rules are %+v, before they were %+v", step, got, rules)
		}
		if len(before) > 0 {
			healed++
		}
	}
	if healed == 0 {
		t.Error("none of the killed ADDs left routes without rules, so the test checked nothing")
	}
}

// strange returns pilotfish's rules and routes in a namespace that are not part of a complete rule set.
func strange(t testing.TB, ns *testns.Namespace) []string {
	t.Helper()
	b, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got.Strange
}

func TestThousandPodsLeaveNothingBehind(t *testing.T) {
	const pods, atATime = 1000, 50
	h := newTestNode(t).withAgent(meshPod("web"))
	plugin := filepath.Join(h.bin, "pilotfish-cni") // the real binary, which also starts faster than the test's binary
	if err := errors.Join(os.Remove(plugin), os.Symlink(testenv.Bin(t, "pilotfish-cni"), plugin)); err != nil {
		t.Fatal(err)
	}
	h.extra["log_file"] = filepath.Join(h.dir, "cni.log")
	pod, config := meshPod("web"), h.withPrevious("1.0.0")
	before := openFiles(t)
	slots := make(chan struct{}, atATime)
	failures := make(chan string, pods)
	for range pods {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			failures <- h.pair(pod, config)
		}()
	}
	trouble := ""
	for range pods { // wait for all goroutines, because they write into the test's directory
		trouble = cmp.Or(trouble, <-failures)
	}
	if trouble != "" {
		t.Fatal(trouble)
	}
	if after := openFiles(t); after > before+10 {
		t.Errorf("%d files are open, %d before", after, before)
	}
	left, err := filepath.Glob(filepath.Join(h.dir, "*"))
	want := []string{filepath.Join(h.dir, agentapi.AttachmentsDir), h.bin, filepath.Join(h.dir, "cni.log"), filepath.Join(h.dir, "pilotfish-cni.sock")}
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("remaining: %v (%v), want %v", left, err, want)
	}
	if noted := h.noted(); len(noted) > 0 {
		t.Errorf("attachment files of deleted sandboxes remain: %v", noted)
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// pair creates a pod's network namespace and runs ADD and DEL. On a busy machine, the pod lookup in ADD may time out.
// pair then runs DEL and tries again, as the kubelet does.
func (h *testNode) pair(pod *agentapi.Pod, config []byte) (trouble string) {
	ns, err := testns.NewNamespace()
	if err != nil {
		return err.Error()
	}
	defer func() { _ = ns.Handle.Close() }()
	added := h.call("ADD", pod, netnsPath(ns), config)
	for tries := 1; tries < 10 && added.err != nil && added.Code == types.ErrTryAgainLater; tries++ {
		if answer := h.call("DEL", pod, netnsPath(ns), config); answer.err != nil {
			return "DEL after a failed ADD: " + answer.out + answer.log
		}
		added = h.call("ADD", pod, netnsPath(ns), config)
	}
	if added.err != nil {
		return "ADD: " + added.out + added.log
	}
	if inForce(h.t, ns) == nil {
		return "after ADD no rules are installed"
	}
	if answer := h.call("DEL", pod, netnsPath(ns), config); answer.err != nil {
		return "DEL: " + answer.out + answer.log
	}
	return ""
}
