package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// FreePort is a port of 127.0.0.1 that nobody listens on now. It is none of those that the kernel gives out by itself, to
// connections and to listeners on port 0 of tests beside this one, which would take it before it is used.
func FreePort(t testing.TB) int {
	t.Helper()
	const first, last = 20000, 32000
	for range 100 {
		port := first + rand.IntN(last-first)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatalf("no free port was found from %d to %d", first, last)
	return 0
}
