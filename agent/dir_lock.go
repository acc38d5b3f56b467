package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// lockConfigDir locks the directories of Envoy's bootstrap and sockets for this agent, until release or process exit.
// Otherwise a second agent could overwrite the bootstrap with which the first agent starts its next Envoy, and the
// Envoy of the second agent could receive the identity of the first.
func lockConfigDir(c *config.Config) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			_ = f.Close() // releases the lock
		}
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{filepath.Dir(config.ControlPath(c.Proxy.GetConfigPath())), 0o711}, {filepath.Dir(c.Certificates.Socket), 0o755},
	} {
		f, err := lockDirectory(d.path, d.mode)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			release()
			return nil, fmt.Errorf("another agent%s runs in %s: stop it first, or start this one in another working directory", describeDirOwner(c), d.path)
		}
		// A directory that cannot be locked is not an error here. If it is not writable, writing its files fails later.
		if err == nil {
			held = append(held, f)
		}
	}
	return release, nil
}

// lockDirectory creates and locks a directory. Closing the returned file releases the lock.
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

// describeDirOwner returns the PID of the agent that listens on the control socket, as text for a message. It returns
// "" if no agent listens.
func describeDirOwner(c *config.Config) string {
	conn, err := net.DialTimeout("unix", config.ControlPath(c.Proxy.GetConfigPath()), config.PeerDialTimeout)
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
