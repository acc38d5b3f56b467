package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// FreePort is a TCP port of 127.0.0.1 that nobody listens on now, and that no other caller gets until the test ends. It is none
// of those that the kernel gives out by itself, to connections and to listeners on port 0 of tests beside this one, which would
// take it before it is used.
func FreePort(t testing.TB) int {
	t.Helper()
	const first, last = 20000, 32000
	for range 100 {
		port := first + rand.IntN(last-first)
		if err := reserve(t, port); err == nil {
			return port
		}
	}
	t.Fatalf("no free port was found from %d to %d", first, last)
	return 0
}

// reserve keeps a port from all other tests, also those of other processes: who has the UDP port of that number has the TCP port.
// To listen there, if only to try, would be to be in the way: a program that is started meanwhile has the listener for a moment, too.
func reserve(t testing.TB, port int) error {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	if tcp, err := net.Dial("tcp", address); err == nil {
		return errors.Join(fmt.Errorf("somebody listens on %s", address), tcp.Close(), udp.Close())
	}
	t.Cleanup(func() { _ = udp.Close() })
	return nil
}
