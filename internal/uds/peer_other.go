//go:build !linux

package uds

import (
	"fmt"
	"net"
	"runtime"
)

// PeerOf returns an error, because only Linux is supported.
func PeerOf(net.Conn) (Peer, error) {
	return Peer{}, fmt.Errorf("cannot determine the peer of a unix socket on %s: pilotfish supports only Linux", runtime.GOOS)
}
