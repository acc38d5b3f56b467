package portowner

import (
	"fmt"
	"net/netip"
	"os"
)

// Listening are the addresses at which TCP connections are accepted in the network of the calling thread, by whomever.
func Listening() ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		f, err := os.Open(file)
		if os.IsNotExist(err) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("who listens: %w", err)
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
