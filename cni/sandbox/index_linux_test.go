package sandbox

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

const uid = "0f0f1111-2222-3333-4444-555566667777"

func TestPodUIDIsReadFromEveryFormOfControlGroup(t *testing.T) {
	for want, text := range map[string]string{
		uid:                                    "0::/kubepods/burstable/pod0f0f1111-2222-3333-4444-555566667777/abcdef\n",
		"0f0f1111-2222-3333-4444-555566660000": "12:cpu:/\n0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0f0f1111_2222_3333_4444_555566660000.slice/cri-containerd-a.scope\n",
		"0123456789abcdef0123456789abcdef":     "4:memory:/kubepods/pod0123456789abcdef0123456789abcdef/x\n",
		"0f0f1111-2222-3333-4444-555566668888": "0::/../../kubepods-pod0f0f1111_2222_3333_4444_555566668888.slice/cri.scope\n",
	} {
		if got := podUID([]byte(text)); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	for _, text := range []string{"", "0::/\n", "0::/user.slice/podman-1234.scope\n", "0::/kubepods/pod0123\n"} {
		if got := podUID([]byte(text)); got != "" {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func FuzzPodUID(f *testing.F) {
	f.Add([]byte("0::/kubepods/pod0f0f1111-2222-3333-4444-555566667777/x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got := podUID(text); got != "" && len(got) != 36 && len(got) != 32 {
			t.Errorf("%q", got)
		}
	})
}

// podOf starts a process in a network namespace and in the cgroup of a pod.
func podOf(t *testing.T, ns *testns.Namespace, uid string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	ns.Start(t, cmd)
	testns.JoinPod(t, cmd.Process.Pid, uid)
	return cmd
}

func address(t *testing.T, ns *testns.Namespace, cidr string) {
	t.Helper()
	ns.Links(t, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		return h.AddrAdd(lo, addr)
	})
}

func thePod(ips ...string) *agentapi.Pod {
	p := &agentapi.Pod{Metadata: agentapi.Metadata{Name: "web", Namespace: "shop", UID: uid}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, agentapi.PodIP{IP: ip})
	}
	return p
}

func scan(t *testing.T) *Index {
	t.Helper()
	x, err := Scan("/proc", "/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestPodIsFoundByItsProcessAndAddress(t *testing.T) {
	ns, inner := testns.New(t), testns.New(t)
	address(t, ns, "10.9.8.7/32")
	podOf(t, inner, uid) // a container of the pod that created another network namespace
	podOf(t, ns, uid)
	s, err := scan(t).Find(thePod("10.9.8.7"), []string{uid}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if has, err := s.Addresses(); err != nil || len(has) < 2 {
		t.Errorf("%v %v", has, err)
	}
	if _, err := scan(t).Find(thePod("10.9.8.8"), []string{uid}, ""); !errors.Is(err, ErrNone) {
		t.Errorf("a namespace without the pod's address was accepted: %v", err)
	}
	if _, err := scan(t).Find(thePod("10.9.8.7"), []string{"another"}, ""); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "no visible process") {
		t.Errorf("a namespace of another pod's process was accepted: %v", err)
	}
}

func TestHintedPathNeedsThePodsAddress(t *testing.T) {
	ns := testns.New(t)
	address(t, ns, "10.9.8.7/32")
	path := "/proc/self/fd/" + strconv.Itoa(int(ns.Handle))
	s, err := scan(t).Find(thePod("10.9.8.7"), nil, path)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, p := range []*agentapi.Pod{thePod("10.9.8.8"), thePod()} {
		if _, err := scan(t).Find(p, nil, path); !errors.Is(err, ErrNone) {
			t.Errorf("%v: %v", p.Addresses(), err)
		}
	}
}

func TestNodesOwnNamespaceIsNeverOpened(t *testing.T) {
	ns := testns.New(t)
	cmd := podOf(t, ns, uid)
	x := scan(t)
	for _, path := range []string{"/proc/thread-self/ns/net", "/dev/null", "/nowhere"} {
		if s, err := x.Open(path); err == nil {
			s.Close()
			t.Errorf("%s was opened", path)
		}
	}
	// A process of a pod with hostNetwork.
	host := exec.Command("sleep", "600")
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Process.Kill(); _ = host.Wait() }()
	x.pids = map[string][]int{uid: {host.Process.Pid}}
	if _, err := x.Find(thePod(), []string{uid}, ""); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	// The PID belonged to a process of another pod during the scan and was reused.
	x.pids = map[string][]int{"somebody": {cmd.Process.Pid}}
	if _, err := x.Find(thePod(), []string{"somebody"}, ""); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}
