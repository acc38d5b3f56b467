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

// services lists the listeners in the pod by port: the usual ports, and those of a mesh with other ports. Every other
// port belongs to the application.
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

// serverOwner returns the proxy's owner for services of the proxy or the agent.
func serverOwner(name string) owner {
	if name == "app" || name == "peer" {
		return owner{}
	}
	return owner{1337, 1337}
}

// serve starts all servers at which connections can arrive.
func (w *testNetwork) serve(t testing.TB) {
	t.Helper()
	for family := range 2 {
		for _, port := range podPorts {
			w.stream(t, w.pod, family, port, podService(port))
		}
		for _, port := range peerPorts {
			w.stream(t, w.peer, family, port, "peer")
		}
		// The reply to a datagram must have the source address that the client queried, so each address has its own
		// socket.
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

// answer returns a reply of the form "name|client address seen by the server|original destination".
func answer(name string, from, meant netip.AddrPort) string {
	return fmt.Sprintf("%s|%s|%s", name, from, meant)
}

func addrPortOf(a net.Addr) netip.AddrPort {
	p := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

func (w *testNetwork) stream(t testing.TB, ns *testns.Namespace, family, port int, name string) {
	t.Helper()
	network := []string{"tcp4", "tcp6"}[family]
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			transparent(int(fd), family) // for TPROXY; otherwise without effect
		})
	}}
	var l net.Listener
	err := ns.Run(func() (err error) {
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
			go w.serveConnection(ns, c.(*net.TCPConn), family, name)
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

// serveConnection replies on a connection, or forwards it as Envoy would if the client requests that.
func (w *testNetwork) serveConnection(ns *testns.Namespace, c *net.TCPConn, family int, name string) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_ = c.SetLinger(0) // avoids thousands of TIME_WAIT entries
	wish := make([]byte, 1)
	if _, err := io.ReadFull(c, wish); err != nil {
		return
	}
	from, meant := addrPortOf(c.RemoteAddr()), originalDestination(c, family)
	reply := answer(name, from, meant)
	if wish[0] != requestDirect && (name == "inbound" || name == "outbound") {
		reply += ">" + w.forward(name, wish[0], from, meant, family)
	}
	_, _ = io.WriteString(c, reply)
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c) // until the client closes
}

// forward connects as Envoy does, and returns the reply.
func (w *testNetwork) forward(name string, wish byte, from, meant netip.AddrPort, family int) string {
	p := probe{network: "tcp", to: meant, owner: *w.proxy.Load()}
	if name == "inbound" {
		p.from = netip.AddrPortFrom(address("pass", family), 0)
		if wish == requestTransparent { // with the client's address, and another port to distinguish the two connections
			p.from, p.mark = netip.AddrPortFrom(from.Addr(), 0), int(w.mark.Load())
		}
	}
	return p.run(w.pod)
}

// originalDestination returns the client's destination as Envoy determines it. Without redirection, it is the socket's
// own address.
func originalDestination(c *net.TCPConn, family int) netip.AddrPort {
	own := addrPortOf(c.LocalAddr())
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

func (w *testNetwork) datagram(t testing.TB, ns *testns.Namespace, a netip.Addr, port int, name string) {
	t.Helper()
	if !a.IsValid() {
		return
	}
	var c *net.UDPConn
	err := ns.Run(func() (err error) {
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
			_, _ = c.WriteToUDPAddrPort([]byte(answer(name, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), addrPortOf(c.LocalAddr()))), from)
		}
	}()
}
