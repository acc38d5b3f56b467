//go:build !linux

package dns

import (
	"errors"
	"net"
	"net/netip"
)

const destinationBytes = 0

// askForDestination is for Linux; elsewhere answers come from the address that the kernel chooses.
func askForDestination(*net.UDPConn) error { return errors.ErrUnsupported }

func destinationOf([]byte) netip.Addr { return netip.Addr{} }

func sourceOf(netip.Addr) []byte { return nil }
