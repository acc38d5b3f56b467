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

// TestAServerThatIsGoneIsToldFromOneThatReadsSlowly: both leave bytes waiting.
func TestAServerThatIsGoneIsToldFromOneThatReadsSlowly(t *testing.T) {
	ns := testns.New(t)
	var server net.Listener
	var conn net.Conn
	err := ns.Within(func() (err error) {
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
			err := ns.Within(func() error {
				return eachSocket(unix.Gettid(), func(s socket) {
					if n, _ := net.LookupPort("tcp", port); portOf(s.local) != uint64(n) || s.unsent() < kernelsPart {
						return
					}
					if found = nil; s.unanswered() != want {
						found = errors.New("it is taken for the other: " + s.resent + " " + s.probes)
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
	testenv.Eventually(t, "the server is taken for gone", look(true))
}
