package redirection

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const (
	tcpFIN, tcpRST = 1, 4
	closedPort     = 7777
)

// For a packet that belongs to no connection, the kernel sends a reset, which can end an existing connection.
func TestInvalidPacketsAreResetUnlessDropped(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestNetwork(t)
			b := backend(t, w.pod)
			for i, drop := range []string{"false", "true"} {
				for j, mode := range []string{"REDIRECT", "TPROXY"} {
					rules, err := iptables.Compile(parse(t, flags(star, dual, []string{"drop-invalid=" + drop, "istio-inbound-interception-mode=" + mode})))
					if err != nil {
						t.Fatal(err)
					}
					if err := b.Apply(t.Context(), rules); err != nil {
						t.Fatal(err)
					}
					if mode == "TPROXY" && drop == "false" {
						continue // inbound packets reach the proxy's socket, which ignores them
					}
					for family := range 2 {
						if reset := w.strayFIN(t, family, uint16(30000+4*i+2*j+family), drop == "false"); reset == (drop == "true") {
							t.Errorf("%s, drop-invalid=%s, IPv%d: reset: %v", mode, drop, 4+2*family, reset)
						}
					}
				}
			}
		})
	}
}

// strayFIN sends the pod a FIN of a connection that does not exist, and reports whether the kernel sends a reset. If
// one is expected, it waits longer for it.
func (w *testNetwork) strayFIN(t *testing.T, family int, port uint16, expected bool) (reset bool) {
	t.Helper()
	timeout := 300 * time.Millisecond
	if expected {
		timeout = retryTimeout
	}
	err := w.peer.Run(func() error {
		domain := []int{unix.AF_INET, unix.AF_INET6}[family]
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		from, to := address("outside", family), address("own", family)
		if err := unix.Sendto(fd, segment(from, to, port, closedPort, tcpFIN), 0, sockaddr(netip.AddrPortFrom(to, 0))); err != nil {
			return err
		}
		deadline := time.Now().Add(timeout)
		buffer := make([]byte, 1500)
		for {
			if err := wait(fd, unix.POLLIN, deadline); errors.Is(err, errSilence) {
				return nil
			} else if err != nil {
				return err
			}
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil {
				return err
			}
			got := buffer[:n]
			if family == 0 {
				got = got[4*(got[0]&15):] // IPv4 packets include their header
			}
			if binary.BigEndian.Uint16(got) == closedPort && binary.BigEndian.Uint16(got[2:]) == port && got[13]&tcpRST != 0 {
				reset = true
				return nil
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return reset
}

// segment returns a TCP header without data.
func segment(from, to netip.Addr, sport, dport uint16, flags byte) []byte {
	h := make([]byte, 20)
	binary.BigEndian.PutUint16(h, sport)
	binary.BigEndian.PutUint16(h[2:], dport)
	binary.BigEndian.PutUint32(h[4:], 1)
	h[12], h[13] = 5<<4, flags
	binary.BigEndian.PutUint16(h[14:], 1024)
	sum := uint32(unix.IPPROTO_TCP + len(h))
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), h} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(h[16:], ^uint16(sum))
	return h
}
