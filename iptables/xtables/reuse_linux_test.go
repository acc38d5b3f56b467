package xtables

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// The kernel retains the conntrack entry of a connection that the peer aborted. Without its deletion, the previous rules
// would apply to a new connection from the same port.
func TestReusedPortFollowsTheNewRules(t *testing.T) {
	forEachFlavour(t, func(t *testing.T, ns *testns.Namespace, b *Backend) {
		shell(t, ns, `ip link add eth0 type veth peer name eth1; ip link set eth0 up; ip link set eth1 up; ip addr add 10.1.0.1/24 dev eth0; ip route add default via 10.1.0.2`)
		capture, spare := iptables.DefaultOptions(), iptables.DefaultOptions()
		capture.OutboundCIDRs.All, spare.OutboundCIDRs.All = true, true
		spare.OutboundExcludePorts = []iptables.PortRange{{First: 80, Last: 80}}
		sets := make([]*iptables.RuleSet, 2)
		for i, o := range []iptables.Options{capture, spare} {
			var err error
			if sets[i], err = iptables.Compile(o); err != nil {
				t.Fatal(err)
			}
		}
		abortAll(t, ns, "127.0.0.1:15001")
		apply(t, b, sets[0])
		if err := dialFrom(ns, 34567); err != nil {
			t.Fatalf("the connection is not captured: %v", err)
		}
		apply(t, b, sets[1])
		if dialFrom(ns, 34567) == nil {
			t.Error("a new connection from the same port is captured by the previous rules")
		}
	})
}

// abortAll listens, and resets each connection.
func abortAll(t *testing.T, ns *testns.Namespace, address string) {
	t.Helper()
	var l net.Listener
	if err := ns.Run(func() (err error) { l, err = net.Listen("tcp", address); return err }); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
}

// dialFrom connects to an unreachable address, and waits until the listener to which it is redirected resets the connection.
func dialFrom(ns *testns.Namespace, port int) error {
	return ns.Run(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		patience := unix.NsecToTimeval(int64(20 * time.Second))
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience) // this is also the timeout of connect
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr("10.1.0.1").As4()}); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: netip.MustParseAddr("203.0.113.9").As4()}); err != nil {
			return err
		}
		_, _ = unix.Read(fd, make([]byte, 1))
		return nil
	})
}
