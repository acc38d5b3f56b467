//go:build !linux

package dns

import (
	"errors"
	"net"
	"net/netip"
)

const destinationBytes = 0

// requestDestination is implemented only on Linux. On other systems, the kernel chooses the source address of
// responses.
func requestDestination(*net.UDPConn) error { return errors.ErrUnsupported }

func destinationOf([]byte) netip.Addr { return netip.Addr{} }

func sourceOf(netip.Addr) []byte { return nil }
