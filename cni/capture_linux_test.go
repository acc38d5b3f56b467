package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables/nft"
)

// podNetwork returns a network namespace like those of a primary CNI plugin: an interface with addresses, and default
// routes.
func podNetwork(t testing.TB, addresses ...string) *testns.Namespace {
	t.Helper()
	ns := testns.New(t)
	connect(t, ns, addresses...)
	return ns
}

func connect(t testing.TB, ns *testns.Namespace, addresses ...string) {
	t.Helper()
	ns.Links(t, func(h *netlink.Handle) error {
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: "eth0"})
		veth.PeerName = "beyond" // in the same namespace, so that nothing responds
		if err := h.LinkAdd(veth); err != nil {
			return err
		}
		for _, name := range []string{"eth0", "beyond"} {
			link, err := h.LinkByName(name)
			if err == nil {
				err = h.LinkSetUp(link)
			}
			if err != nil {
				return err
			}
		}
		for _, text := range addresses {
			address, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			address.Flags = 0x02 // IFA_F_NODAD
			if err := h.AddrAdd(veth, address); err != nil {
				return err
			}
			all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
			if address.IP.To4() == nil {
				all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
			}
			if err := h.RouteAdd(&netlink.Route{LinkIndex: veth.Index, Dst: all, Scope: netlink.SCOPE_LINK}); err != nil {
				return err
			}
		}
		return nil
	})
}

// envoyAt listens on Envoy's ports and replies to each connection with the port.
func envoyAt(t testing.TB, ns *testns.Namespace, ports ...int) {
	t.Helper()
	for _, port := range ports {
		var l net.Listener
		err := ns.Run(func() (err error) {
			l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = fmt.Fprint(c, port)
				_ = c.Close()
			}
		}()
	}
}

// reach connects from within a namespace as a user and returns the reply. The timeout is long if a reply is expected.
func reach(ns *testns.Namespace, uid int, address, want string) string {
	patience := 300 * time.Millisecond
	if want != "nothing" {
		patience = 20 * time.Second
	}
	answer := "nothing"
	_ = ns.Run(func() error {
		// Rules match the user who creates the socket. The thread changes its user and is discarded afterwards.
		if err := errors.Join(unix.Setfsgid(uid), unix.Setfsuid(uid)); err != nil {
			return err
		}
		d := net.Dialer{Timeout: patience}
		c, err := d.DialContext(context.Background(), "tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		b := make([]byte, 16)
		n, _ := c.Read(b)
		answer = string(b[:n])
		return nil
	})
	return answer
}

func TestTrafficOfACapturedPodReachesItsProxy(t *testing.T) {
	pod := meshPod("web")
	h := newTestNode(t).withAgent(pod)
	ns := podNetwork(t, "10.9.0.5/24")
	envoyAt(t, ns, 15001, 16001)
	if got := reach(ns, 1000, "10.200.0.1:80", "nothing"); got != "nothing" {
		t.Fatalf("a connection before ADD reached %s", got)
	}
	runtime, rt := h.libcni(), runtimeConf(pod, ns)
	t.Setenv("PRIMARY_VERSION", "1.1.0")
	add := func() {
		t.Helper()
		if _, err := runtime.AddNetworkList(t.Context(), h.list("1.1.0"), rt); err != nil {
			t.Fatal(err)
		}
	}
	add()
	if got := reach(ns, 1000, "10.200.0.1:80", "15001"); got != "15001" {
		t.Errorf("an application's connection reached %s, want the proxy", got)
	}
	if got := reach(ns, 1337, "10.200.0.1:80", "nothing"); got != "nothing" {
		t.Errorf("the proxy's own connection reached %s", got)
	}
	if last := h.agent.last(); last.Outcome != agentapi.Captured || last.Source != "agent" {
		t.Errorf("the agent received the result %+v", last)
	}
	h.extra["proxy_listen_port"] = 16001
	add()
	if got := reach(ns, 1000, "10.200.0.1:80", "16001"); got != "16001" {
		t.Errorf("with another proxy port, a connection reached %s", got)
	}
	if err := runtime.CheckNetworkList(t.Context(), h.list("1.1.0"), rt); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := runtime.DelNetworkList(t.Context(), h.list("1.1.0"), rt); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if got := reach(ns, 1000, "10.200.0.1:80", "16001"); got != "16001" {
		t.Errorf("after DEL, a connection of a running process reached %s, so it is no longer captured", got)
	}
}

func TestCHECKFailsIfRulesAreMissingOrChanged(t *testing.T) {
	pod := meshPod("web")
	h := newTestNode(t).withAgent(pod)
	ns := podNetwork(t, "10.9.0.5/24")
	check := func() cniAnswer { return h.call("CHECK", pod, netnsPath(ns), h.withPrevious("1.0.0")) }
	if answer := check(); answer.Code != CodeNotInForce {
		t.Errorf("CHECK before ADD: %s", answer.out)
	}
	if answer := h.call("ADD", pod, netnsPath(ns), h.withPrevious("1.0.0")); answer.err != nil {
		t.Fatal(answer.out)
	}
	if answer := check(); answer.err != nil || answer.out != "" {
		t.Errorf("CHECK after ADD: %s", answer.out)
	}
	pod.Metadata.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "5432"
	if answer := check(); answer.Code != CodeNotInForce {
		t.Errorf("CHECK with other settings: %s", answer.out)
	}
	b, err := nft.New(nft.Config{NetNS: int(ns.Handle)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if answer := check(); answer.Code != CodeNotInForce || answer.Details == "" {
		t.Errorf("CHECK without rules: %s", answer.out)
	}
	if answer := h.call("CHECK", plainPod("plain"), netnsPath(ns), h.withPrevious("1.0.0")); answer.Code != types.ErrUnknownContainer {
		t.Errorf("CHECK of a pod that does not exist: %s", answer.out)
	}
}

// The network namespace of a pod with hostUsers: false belongs to the pod's user namespace.
func TestPodWithAUserNamespaceIsCaptured(t *testing.T) {
	pod := meshPod("web")
	pod.Metadata.Annotations["sidecar.istio.io/interceptionMode"] = "TPROXY"
	h := newTestNode(t).withAgent(pod)
	testns.New(t) // skips the test if namespaces cannot be created
	cmd := exec.Command("/bin/sleep", "60")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Skipf("user namespaces cannot be created: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	ns, err := netns.GetFromPid(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	pods := &testns.Namespace{Handle: ns}
	pods.Links(t, func(l *netlink.Handle) error {
		return l.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 1}})
	})
	connect(t, pods, "10.9.0.5/24")
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		if answer := h.call(command, pod, netnsPath(pods), h.withPrevious("1.0.0")); answer.err != nil {
			t.Errorf("%s: %s", command, answer.out)
		}
	}
	envoyAt(t, pods, 15001)
	for uid, want := range map[int]string{100000 + 1000: "15001", 100000 + 1337: "nothing", 1337: "15001"} { // user IDs outside the user namespace
		if got := reach(pods, uid, "10.200.0.1:80", want); got != want {
			t.Errorf("user %d of the node reached %s, want %s", uid, got, want)
		}
	}
}

func TestNodesIPTablesAreUsedWhereTheyAreForced(t *testing.T) {
	if _, err := exec.LookPath("iptables-legacy-restore"); err != nil {
		t.Skip("iptables is not installed; run scripts/iptables.sh")
	}
	pod := meshPod("web")
	h := newTestNode(t).withAgent(pod)
	ns := podNetwork(t, "10.9.0.5/24")
	envoyAt(t, ns, 15001)
	for _, force := range []string{"legacy", "nft", ""} {
		h.extra["force_iptables_binary"] = force
		for _, command := range []string{"ADD", "CHECK"} {
			if answer := h.call(command, pod, netnsPath(ns), h.withPrevious("1.0.0"), "PATH="+os.Getenv("PATH")); answer.err != nil {
				t.Errorf("%q: %s: %s", force, command, answer.out)
			}
		}
		if got := reach(ns, 1000, "10.200.0.1:80", "15001"); got != "15001" {
			t.Errorf("%q: an application's connection reached %s, want the proxy", force, got)
		}
		if got := reach(ns, 1337, "10.200.0.1:80", "nothing"); got != "nothing" {
			t.Errorf("%q: the proxy's own connection reached %s", force, got)
		}
		if byNFTables := inForce(t, ns) != nil; byNFTables != (force == "") {
			t.Errorf("%q: our table of nftables is there: %v", force, byNFTables)
		}
	}
}
