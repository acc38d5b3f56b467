package verify

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

// validating is the environment variable that makes the test binary run as a validator. Its value names the options.
const validating = "PILOTFISH_TEST_VALIDATING"

// validator runs the validation, as an init container does.
func validator(name string) int {
	rules, err := compiled(choices()[name])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	r, err := Validate(context.Background(), Config{Want: rules})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print(r.Details())
	if err := r.Captured(); err != nil {
		fmt.Println(err)
		return NotCaptured
	}
	return 0
}

// newReachableNamespace returns a namespace that is reachable from outside, like a pod.
func newReachableNamespace(t *testing.T) *testns.Namespace {
	t.Helper()
	ns := testns.New(t)
	ns.Links(t, func(h *netlink.Handle) error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
		if err := h.LinkAdd(link); err != nil {
			return err
		}
		peer, err := h.LinkByName("peer")
		if err != nil {
			return err
		}
		if err := h.LinkSetUp(peer); err != nil {
			return err
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
		for _, text := range []string{"10.9.8.7/24", "fd09::7/64"} {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			a.Flags = syscall.IFA_F_NODAD
			if err := h.AddrAdd(link, a); err != nil {
				return err
			}
			everywhere, _ := netlink.ParseIPNet("0.0.0.0/0")
			if strings.Contains(text, ":") {
				everywhere, _ = netlink.ParseIPNet("::/0")
			}
			if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Index, Dst: everywhere}); err != nil {
				return err
			}
		}
		return nil
	})
	return ns
}

// validate runs a validator in the namespace as the user uid. through is a command that starts it, such as setpriv; it may be
// empty.
func validate(t *testing.T, ns *testns.Namespace, name string, uid uint32, through ...string) (code int, output string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe") // other users cannot access the directory of the binary
	if len(through) > 0 {
		cmd = exec.Command(through[0], append(through[1:], self)...)
	}
	cmd.Env = append(os.Environ(), validating+"="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, ended := ns.Start(t, cmd)
	<-ended
	return cmd.ProcessState.ExitCode(), out.String()
}

func TestValidatorUsesItsPrivileges(t *testing.T) {
	istioInit := []string{"setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--inh-caps=-all"}
	for _, c := range []struct {
		name, options string
		uid           uint32
		through       []string
		proves        []string
		leaves        []string
	}{
		{name: "the proxy's user without privileges", options: "all", uid: 1337,
			proves: []string{"IPv4 TCP to the pod's own address, port 30123, from uid 1337, gid 1337 → port 15006", "IPv6 TCP to the pod's own address, port 30123, from uid 1337, gid 1337 → port 15006"},
			leaves: []string{"unproven   inbound traffic", "unproven   outbound traffic of applications"}},
		{name: "another user without privileges", options: "dns", uid: 1000,
			proves: []string{"outbound IPv4 TCP to 203.0.113.77:30123 from uid 1000, gid 1000 → port 15001", "outbound IPv6 TCP", "outbound IPv4 UDP to 203.0.113.77:53 from uid 1000, gid 1000 → port 15053"},
			leaves: []string{"unproven   inbound traffic"}},
		{name: "root with the capabilities of istio-init", options: "all", through: istioInit,
			proves: []string{"outbound IPv4 TCP to 203.0.113.77:30123 from uid 0, gid 0 → port 15001", "inbound IPv4 TCP to port 30123 → port 15006", "inbound IPv6 TCP to port 30123 → port 15006"},
			leaves: []string{"unproven   traffic of other users"}},
		{name: "root", options: "transparent",
			proves: []string{"inbound IPv4 TCP to port 30123 → the transparent proxy", "from uid 1337, gid 10123 → outside"}},
		{name: "the proxy's user, transparent", options: "transparent", uid: 1337,
			proves: []string{"IPv4 TCP to the pod's own address, port 30123, from uid 1337, gid 1337 → dropped, because the transparent proxy does not run"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns := newReachableNamespace(t)
			code, output := validate(t, ns, c.options, c.uid, c.through...)
			if code != NotCaptured || !strings.Contains(output, "bypasses the proxy") {
				t.Errorf("without rules: exit code %d\n%s", code, output)
			}
			if err := backend(t, ns).Apply(context.Background(), compile(t, choices()[c.options])); err != nil {
				t.Fatal(err)
			}
			code, output = validate(t, ns, c.options, c.uid, c.through...)
			if code != 0 {
				t.Errorf("with rules: exit code %d", code)
			}
			for _, want := range append(c.proves, c.leaves...) {
				if !strings.Contains(output, want) {
					t.Errorf("the output does not contain %q", want)
				}
			}
			t.Log(output)
		})
	}
}

// In a pod with its own user namespace, the rules contain IDs of that namespace. A test packet from outside has none of
// them.
func TestPodWithUserNamespaceIsNotReportedAsWrong(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to create a user namespace for another user")
	}
	pod := exec.Command("unshare", "--net", "sh", "-c", "ip link set lo up; echo ready; exec sleep 60")
	pod.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}},
		Credential:  &syscall.Credential{}}
	runtime.LockOSThread() // because of Pdeathsig, the kernel kills the pod when this thread exits
	defer runtime.UnlockOSThread()
	out, err := pod.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pod.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pod.Process.Kill(); _ = pod.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pod.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	rules := compile(t, nil)
	b, err := nft.New(nft.Config{NetNS: int(file.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Config{Backend: b, Want: rules, NetNS: int(file.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.Proven() < 20 || !strings.Contains(r.String(), "unproven   traffic of other users") {
		t.Errorf("%s", r.Details())
	}
}
