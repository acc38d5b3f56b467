//go:build !linux

package dns

import (
	"errors"
	"net"
	"net/netip"
)

const destinationBytes = 0

// requestDestination is supported on Linux only. Elsewhere the kernel chooses the source address of answers.
func requestDestination(*net.UDPConn) error { return errors.ErrUnsupported }

func destinationOf([]byte) netip.Addr { return netip.Addr{} }

func sourceOf(netip.Addr) []byte { return nil }
