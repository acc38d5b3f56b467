package redirection

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// services are what listens in the pod, by port: as usual, and on ports of a mesh that has others. All else there is the
// application.
var services = map[int]string{
	15001: "outbound", 15006: "inbound", 15008: "tunnel", 15053: "dns",
	15101: "outbound", 15106: "inbound", 15108: "tunnel", 15153: "dns",
}

var (
	podPorts  = append([]int{22, 53, 80, 443, 3306, 8080, 8443, 9999, 15020, 15021, 15090}, slices.Collect(maps.Keys(services))...)
	peerPorts = []int{22, 53, 80, 443, 3306, 8080, 8443, 9999, 15008}
	datagrams = []int{53, 9999, 15053, 15153}
)

func podService(port int) string {
	if name, ok := services[port]; ok {
		return name
	}
	return "app"
}

// serverOwner is the proxy where the service is its, or the agent's.
func serverOwner(name string) owner {
	if name == "app" || name == "peer" {
		return owner{}
	}
	return owner{1337, 1337}
}

// serve starts everything that connections can arrive at.
func (w *world) serve(t testing.TB) {
	t.Helper()
	for family := range 2 {
		for _, port := range podPorts {
			w.stream(t, w.pod, family, port, podService(port))
		}
		for _, port := range peerPorts {
			w.stream(t, w.peer, family, port, "peer")
		}
		// A datagram's answer has to come from the address that was asked, so each has its socket.
		for _, port := range datagrams {
			for _, name := range []string{"own", "net1", "virtual", "localhost", "loop5"} {
				w.datagram(t, w.pod, address(name, family), port, podService(port))
			}
			for _, name := range append([]string{"outside", "outside1"}, peers...) {
				w.datagram(t, w.peer, address(name, family), port, "peer")
			}
		}
	}
}

// An answer is "name|who asked, as seen here|whom they meant to ask".
func answer(name string, from, meant netip.AddrPort) string {
	return fmt.Sprintf("%s|%s|%s", name, from, meant)
}

func plain(a net.Addr) netip.AddrPort {
	p := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

func (w *world) stream(t testing.TB, ns *testns.Namespace, family, port int, name string) {
	t.Helper()
	network := []string{"tcp4", "tcp6"}[family]
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			transparent(int(fd), family) // for TPROXY; it bears on nothing else
		})
	}}
	var l net.Listener
	err := ns.Within(func() (err error) {
		if err := asOwner(serverOwner(name)); err != nil {
			return err
		}
		l, err = config.Listen(context.Background(), network, fmt.Sprintf(":%d", port))
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
			go w.talk(ns, c.(*net.TCPConn), family, name)
		}
	}()
}

func transparent(fd, family int) {
	if family == 0 {
		_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		return
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
}

// talk answers, or passes the connection on as Envoy would, when it is asked to.
func (w *world) talk(ns *testns.Namespace, c *net.TCPConn, family int, name string) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_ = c.SetLinger(0) // no TIME_WAIT: thousands of these are made
	wish := make([]byte, 1)
	if _, err := io.ReadFull(c, wish); err != nil {
		return
	}
	from, meant := plain(c.RemoteAddr()), originalDestination(c, family)
	said := answer(name, from, meant)
	if wish[0] != askOnce && (name == "inbound" || name == "outbound") {
		said += ">" + w.passOn(name, wish[0], from, meant, family)
	}
	_, _ = io.WriteString(c, said)
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c) // until the asker is done
}

// passOn connects as Envoy does, and gives what it is answered.
func (w *world) passOn(name string, wish byte, from, meant netip.AddrPort, family int) string {
	p := probe{network: "tcp", to: meant, owner: *w.proxy.Load()}
	if name == "inbound" {
		p.from = netip.AddrPortFrom(address("pass", family), 0)
		if wish == askTransparently { // with the client's address; a port of its own keeps the two connections apart
			p.from, p.mark = netip.AddrPortFrom(from.Addr(), 0), int(w.mark.Load())
		}
	}
	return p.run(w.pod)
}

// originalDestination is whom the client meant, as Envoy finds out. Without redirection it is the socket's own address.
func originalDestination(c *net.TCPConn, family int) netip.AddrPort {
	own := plain(c.LocalAddr())
	raw, err := c.SyscallConn()
	if err != nil {
		return own
	}
	meant := own
	_ = raw.Control(func(fd uintptr) {
		var buffer [28]byte
		size := uint32(len(buffer))
		level, option := uintptr(unix.SOL_IP), uintptr(80) // SO_ORIGINAL_DST
		if family == 1 {
			level = unix.SOL_IPV6
		}
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, level, option, uintptr(unsafe.Pointer(&buffer)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return
		}
		port := uint16(buffer[2])<<8 | uint16(buffer[3])
		if family == 0 {
			meant = netip.AddrPortFrom(netip.AddrFrom4([4]byte(buffer[4:8])), port)
		} else {
			meant = netip.AddrPortFrom(netip.AddrFrom16([16]byte(buffer[8:24])), port)
		}
	})
	return meant
}

func (w *world) datagram(t testing.TB, ns *testns.Namespace, a netip.Addr, port int, name string) {
	t.Helper()
	if !a.IsValid() {
		return
	}
	var c *net.UDPConn
	err := ns.Within(func() (err error) {
		if err := asOwner(serverOwner(name)); err != nil {
			return err
		}
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, uint16(port))))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buffer := make([]byte, 64)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buffer)
			if err != nil {
				if strings.Contains(err.Error(), "closed") {
					return
				}
				continue
			}
			_, _ = c.WriteToUDPAddrPort([]byte(answer(name, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), plain(c.LocalAddr()))), from)
		}
	}()
}
