package controlplane_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// runningCommand is a running `pilotfish control-plane`.
type runningCommand struct {
	t    *testing.T
	log  testenv.Buffer
	stop func()
}

// startCommand runs the command with free ports until the test ends or stop is called.
func startCommand(t *testing.T, args ...string) *runningCommand {
	t.Helper()
	p := &runningCommand{t: t}
	cmd := controlplane.NewCommand()
	cmd.SetArgs(append([]string{"--config-dir", t.TempDir(), "--state-dir", t.TempDir(),
		"--port=-1", "--secure-port=-1", "--monitoring-port=-1", "--token-port=-1"}, args...))
	cmd.SetOut(io.Discard)
	cmd.SetErr(&p.log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the command ended with %v", err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// address waits until the command logs its addresses, and returns that of a port.
func (p *runningCommand) address(port string) (at netip.AddrPort) {
	p.t.Helper()
	pattern := regexp.MustCompile(`the control plane listens.* ` + port + `=(\S+)`)
	testenv.Eventually(p.t, "the command logs its addresses", func() (err error) {
		found := pattern.FindStringSubmatch(p.log.String())
		if found == nil {
			return fmt.Errorf("the log is %s", p.log.String())
		}
		at, err = netip.ParseAddrPort(found[1])
		return err
	})
	return at
}

func (p *runningCommand) connect(port string) net.Conn {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.address(port).String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// readToEnd reads until the peer closes the connection. It returns an error if the connection ends otherwise.
func readToEnd(conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	return err
}

func TestConnectionsWithoutAStreamAreClosedAfterTheAuthTimeout(t *testing.T) {
	p := startCommand(t, "--auth-timeout", "50ms")
	for _, port := range []string{"secure", "plain"} {
		conn := p.connect(port)
		// Less than the flag's default, 15 s.
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := readToEnd(conn); os.IsTimeout(err) {
			t.Errorf("%s port: a silent connection is not closed", port)
		}
	}
}
