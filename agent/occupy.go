package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// occupyAsk bounds the question who else is there.
const occupyAsk = 500 * time.Millisecond

// occupy takes the directories in which Envoy's bootstrap and sockets are for this agent alone, until release or the end
// of the process. A second agent would change the bootstrap that the next Envoy of the first one starts with, and its
// Envoy would get the first one's identity.
func occupy(c *Config) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			_ = f.Close() // which gives up the lock
		}
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{filepath.Dir(controlPath(c.Proxy.GetConfigPath())), 0o711}, {filepath.Dir(c.Certificates.Socket), 0o755},
	} {
		f, err := lockDirectory(d.path, d.mode)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			release()
			return nil, fmt.Errorf("another agent%s runs in %s: stop that one first, or give this one another working directory", whoControls(c), d.path)
		}
		// What cannot be locked is told of by whoever writes there, if that is not possible either.
		if err == nil {
			held = append(held, f)
		}
	}
	return release, nil
}

// lockDirectory locks a directory, which it makes where it is missing; the lock ends with the file.
func lockDirectory(dir string, mode os.FileMode) (*os.File, error) {
	if err := os.MkdirAll(dir, mode); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// whoControls names the agent that listens on the control socket, if there is one.
func whoControls(c *Config) string {
	conn, err := net.DialTimeout("unix", controlPath(c.Proxy.GetConfigPath()), occupyAsk)
	if err != nil {
		return ""
	}
	defer conn.Close()
	peer, err := uds.PeerOf(conn)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", peer.PID)
}
