package envoy

import (
	"errors"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// TestUnreachableServerIsDistinguishedFromSlowReader verifies that pending bytes count for a slow reader, but not for
// an unreachable server.
func TestUnreachableServerIsDistinguishedFromSlowReader(t *testing.T) {
	ns := testns.New(t)
	var server net.Listener
	var conn net.Conn
	err := ns.Run(func() (err error) {
		if server, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			conn, err = net.Dial("tcp", server.Addr().String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = server.Close(), conn.Close() }()
	go func() { _, _ = conn.Write(make([]byte, 64<<20)) }()
	_, port, _ := net.SplitHostPort(conn.LocalAddr().String())
	look := func(want bool) func() error {
		return func() error {
			found := errors.New("no bytes wait")
			err := ns.Run(func() error {
				return forEachSocket(unix.Gettid(), func(s socket) {
					if n, _ := net.LookupPort("tcp", port); parsePort(s.local) != uint64(n) || s.pendingBytes() < kernelSendBuffer {
						return
					}
					if found = nil; s.isUnresponsive() != want {
						found = errors.New("it is taken for the other: " + s.retransmits + " " + s.probes)
					}
				})
			})
			return errors.Join(err, found)
		}
	}
	testenv.Eventually(t, "bytes wait for a server that does not read", look(false))
	ns.Links(t, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetDown(lo)
	})
	testenv.Eventually(t, "the server is considered unreachable", look(true))
}
