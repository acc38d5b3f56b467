package portowner

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestConflictNamesTheProcessThatHoldsThePort(t *testing.T) {
	for _, c := range []struct{ name, held, wanted string }{
		{"same address", "127.41.0.1:0", "127.41.0.1"},
		{"all addresses held", "0.0.0.0:0", "127.41.0.1"},
		{"all addresses wanted", "127.41.0.1:0", "0.0.0.0"},
		{"no host", ":0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := net.Listen("tcp", c.held)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			addr := net.JoinHostPort(c.wanted, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
			_, err = net.Listen("tcp", addr)
			err = Explain("tcp", addr, err)
			var conflict *ConflictError
			if !errors.As(err, &conflict) || !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatalf("Explain = %v, want a ConflictError that wraps EADDRINUSE", err)
			}
			for _, want := range []string{addr, "pid " + strconv.Itoa(os.Getpid()), "portowner.test", "choose another address"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestConflictNamesAnotherProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.41.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, _ = file.Close(), l.Close()

	_, err = net.Listen("tcp", l.Addr().String())
	if got, want := Explain("tcp", l.Addr().String(), err).Error(), "sleep 60 (pid "+strconv.Itoa(cmd.Process.Pid)+")"; !strings.Contains(got, want) {
		t.Errorf("error %q does not contain %q", got, want)
	}
}

func TestUDPConflictIsExplainedToo(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.41.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = net.ListenPacket("udp", c.LocalAddr().String())
	if err := Explain("udp", c.LocalAddr().String(), err); !strings.Contains(err.Error(), "this process itself") {
		t.Errorf("Explain = %v", err)
	}
}

func TestOtherErrorsGetTheirOwnRemedy(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{syscall.EADDRNOTAVAIL, "does not have this address"},
		{syscall.EACCES, "CAP_NET_BIND_SERVICE"},
		{errors.New("boom"), "boom"},
	} {
		if err := Explain("tcp", "192.0.2.1:80", c.err); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Explain(%v) = %v, want it to contain %q", c.err, err, c.want)
		}
	}
	if Explain("tcp", ":1", nil) != nil {
		t.Error("Explain returned an error for a nil error")
	}
	if err := Explain("tcp", "no-port", syscall.EADDRINUSE); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Explain = %v", err)
	}
}

func TestSocketInAnotherStateOrOnAnotherAddressIsNotInTheWay(t *testing.T) {
	ip := netip.MustParseAddr
	for _, c := range []struct {
		held  string
		state byte
		want  string
		way   bool
	}{
		{"127.0.0.1:80", stateListen, "127.0.0.1", true},
		{"127.0.0.1:80", 1, "127.0.0.1", false},
		{"127.0.0.2:80", stateListen, "127.0.0.1", false},
		{"[::]:80", stateListen, "127.0.0.1", true},
		{"0.0.0.0:80", stateListen, "::1", false},
		{"[::1]:80", stateListen, "0.0.0.0", false},
		{"[::1]:80", stateListen, "::", true},
		{"0.0.0.0:80", stateListen, "::", true},
		{"[::]:80", stateListen, "0.0.0.0", true},
	} {
		s := socket{local: netip.MustParseAddrPort(c.held), state: c.state}
		if got := s.blocks(ip(c.want), 80); got != c.way {
			t.Errorf("a socket at %s in state %d blocks %s: %v, want %v", c.held, c.state, c.want, got, c.way)
		}
	}
}

func FuzzParseSockets(f *testing.F) {
	f.Add([]byte("   0: 0100007F:3AAC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0000000000000000 100 0 0 10 0\n"))
	f.Add([]byte("   1: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 77 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, s := range parseSockets(bytes.NewReader(data)) {
			if !s.local.IsValid() {
				t.Errorf("the parser returned an invalid address for %q", data)
			}
		}
	})
}
