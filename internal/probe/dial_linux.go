package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// shareSourcePorts makes the kernel choose the source port when the socket connects, instead of when it binds. Each
// port chosen by bind is reserved for all destinations, so frequent probes would exhaust the ports.
func shareSourcePorts(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		// The error is ignored: without the option, a few hundred probes per second still work.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
}
