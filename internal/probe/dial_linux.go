package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// shareSourcePorts has the source port chosen when the destination is known. Chosen before, it would be the address's only
// use of that port, and probes that come fast would run out of ports while closed connections still hold theirs.
func shareSourcePorts(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		// Without the option a probe works just the same, up to some hundred of them a second.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
}
