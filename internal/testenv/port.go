package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// FreePort returns a free TCP port of 127.0.0.1. It returns this port to no other test until this test ends. The port
// is outside the range from which the kernel selects ports for connections and for listeners on port 0.
func FreePort(t testing.TB) int {
	t.Helper()
	port, release, err := ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}

// ReservePort returns a port like FreePort, and a function that releases it.
func ReservePort() (port int, release func(), err error) {
	const first, last = 20000, 32000
	for range 100 {
		port = first + rand.IntN(last-first)
		if release, err = reserve(port); err == nil {
			return port, release, nil
		}
	}
	return 0, nil, fmt.Errorf("no free port was found from %d to %d: %w", first, last, err)
}

// reserve reserves a port, so that other tests of this and other processes do not use it. It binds the UDP port of the
// same number. It does not use a TCP listener, because a program that is started meanwhile would inherit the listener
// for a moment.
func reserve(port int) (release func(), err error) {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		return nil, err
	}
	if tcp, err := net.Dial("tcp", address); err == nil {
		return nil, errors.Join(fmt.Errorf("another process listens on %s", address), tcp.Close(), udp.Close())
	}
	return func() { _ = udp.Close() }, nil
}
