package portowner

import (
	"fmt"
	"net/netip"
	"os"
)

// Listening returns the addresses of all listening TCP sockets in the network namespace of the calling thread.
func Listening() ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		f, err := os.Open(file)
		if os.IsNotExist(err) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing the listening sockets: %w", err)
		}
		for _, s := range parseSockets(f) {
			if s.state == stateListen {
				all = append(all, s.local)
			}
		}
		_ = f.Close()
	}
	return all, nil
}
