package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// shareSourcePorts makes the kernel select the source port when the socket connects, instead of when it is bound. If
// bind selects it, the port is reserved for all destinations, and frequent probes would exhaust the ports.
func shareSourcePorts(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		// The error is ignored, because a few hundred probes per second work even without the option.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
}
