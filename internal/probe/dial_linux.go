package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// shareSourcePorts lets the kernel choose the source port when it connects, and not when it binds. A port chosen by
// bind is unusable for every other destination, and frequent probes would exhaust the ports while closed connections
// still hold theirs.
func shareSourcePorts(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		// The error is ignored: without the option, probes work up to some hundreds per second.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
}
