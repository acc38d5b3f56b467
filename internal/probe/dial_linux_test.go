package probe

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inNetwork runs do in a new network namespace with only a loopback interface. Threads that do starts are in the same
// namespace as the test.
func inNetwork(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = loopbackUp()
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("creating a network namespace: %v", err)
	}
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// addV6 adds an IPv6 address to loopback and waits until the kernel accepts connections from it.
func addV6(address string) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request := struct { // in6_ifreq
		address [16]byte
		prefix  uint32
		index   int32
	}{netip.MustParseAddr(address).As16(), 128, 1}
	if _, _, number := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&request))); number != 0 {
		return number
	}
	deadline := time.Now().Add(soon)
	for {
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err == nil {
			return l.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func addV4(address string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo:1")
	if err != nil {
		return err
	}
	if err := ifr.SetInet4Addr(netip.MustParseAddr(address).AsSlice()); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, unix.SIOCSIFADDR, ifr)
}

// probeSource runs a TCP probe of the address and returns the probe's source address.
func probeSource(t *testing.T, address string) (from string, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	conn, err := dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		return "", err
	}
	taken, err := l.Accept()
	if err != nil {
		return "", err
	}
	// The side that closes first occupies its port in the state TIME_WAIT.
	_, _ = conn.Close(), taken.Close()
	from, _, err = net.SplitHostPort(conn.LocalAddr().String())
	return from, err
}

func TestProbesComeFromTheAddressThatRedirectionLetsPass(t *testing.T) {
	inNetwork(t, func() {
		for _, err := range []error{addV4("10.9.8.7"), addV6("fd00::7")} {
			if err != nil {
				t.Error(err)
			}
		}
		for _, c := range []struct{ pod, from string }{
			{"10.9.8.7", "127.0.0.6"}, {"127.0.0.1", "127.0.0.6"},
			{"fd00::7", "fd00::7"}, // the pod has no ::6 yet
		} {
			if got, err := probeSource(t, net.JoinHostPort(c.pod, "0")); err != nil || got != c.from {
				t.Errorf("%s is probed from %s, %v; want %s", c.pod, got, err, c.from)
			}
		}
		if err := addV6("::6"); err != nil {
			t.Error(err)
		}
		for _, pod := range []string{"fd00::7", "::1"} {
			got, err := probeSource(t, net.JoinHostPort(pod, "0"))
			if err != nil || got != "::6" {
				t.Errorf("%s is probed from %s, %v; want ::6", pod, got, err)
			}
		}
	})
}

func TestProbesOfManyPortsShareTheirSourcePorts(t *testing.T) {
	inNetwork(t, func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40049"), 0); err != nil {
			t.Error(err)
			return
		}
		for port := range 200 {
			if _, err := probeSource(t, fmt.Sprintf("127.0.0.1:%d", 1000+port)); err != nil {
				t.Errorf("probe %d: %v", port, err)
				return
			}
		}
	})
}
