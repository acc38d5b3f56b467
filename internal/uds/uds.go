// Package uds creates the agent's unix sockets and identifies the processes that connect to them.
package uds

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// ProxyUID is the user ID of Envoy in an injected pod.
const ProxyUID = 1337

// maxPath is the maximum length of a unix socket's path on Linux, without the terminating zero byte.
const maxPath = 107

// probeTimeout limits the connection attempt that shows whether a process still listens on an existing socket.
const probeTimeout = time.Second

// Listen creates a unix socket with exactly the specified mode, and its directory if it is missing. It replaces a
// socket file on which no process listens. If a process listens on it, Listen returns an error. When the listener is
// closed, it removes the file, unless another process has replaced the file.
//
// Listen creates the socket with another name and then renames it, so that the file at path never has a wider mode.
func Listen(path string, mode fs.FileMode) (net.Listener, error) { return ListenFor(nil, path, mode) }

// ListenFor is like Listen, but the socket's file belongs to o.
func ListenFor(o *owner.Owner, path string, mode fs.FileMode) (net.Listener, error) {
	staging := path + ".new"
	if len(staging) > maxPath {
		return nil, fmt.Errorf("unix socket %s: the path has %d bytes, the limit is %d: name it relative to the working directory",
			path, len(path), maxPath-len(".new"))
	}
	if err := o.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("unix socket %s: creating its directory: %w", path, err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	if err := os.Remove(staging); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("unix socket %s: removing the socket of an earlier run: %w", path, err)
	}
	return listen(o, path, staging, mode)
}

func listen(o *owner.Owner, path, staging string, mode fs.FileMode) (net.Listener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: staging, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("unix socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	own, err := installSocket(o, path, staging, mode)
	if err != nil {
		_ = l.Close()
		_ = os.Remove(staging)
		return nil, fmt.Errorf("unix socket %s: %w", path, err)
	}
	return &listener{UnixListener: l, path: path, own: own}, nil
}

func installSocket(o *owner.Owner, path, staging string, mode fs.FileMode) (fs.FileInfo, error) {
	if err := os.Chmod(staging, mode); err != nil {
		return nil, err
	}
	if err := o.Chown(staging); err != nil {
		return nil, err
	}
	own, err := os.Lstat(staging)
	if err != nil {
		return nil, err
	}
	return own, os.Rename(staging, path)
}

// removeStale removes a socket on which no process listens.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unix socket %s: %w", path, err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("unix socket %s: the path is not a socket (%s): remove it", path, info.Mode().Type())
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("unix socket %s: another process listens on it: stop that process, or use another working directory", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unix socket %s: checking for a listening process: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unix socket %s: removing the socket of an earlier run: %w", path, err)
	}
	return nil
}

// listener removes its file when it is closed.
type listener struct {
	*net.UnixListener
	path string
	own  fs.FileInfo
}

func (l *listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// Addr returns the path to which clients connect. The address of the embedded listener is the temporary name.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Users is the set of user IDs whose processes may connect.
type Users []uint32

// DefaultUsers returns this process's user, root, and Envoy's user in an injected pod.
func DefaultUsers() Users { return Users{uint32(os.Geteuid()), 0, ProxyUID} }

// Everyone is an element of Users that permits all users.
const Everyone = ^uint32(0)

// Allow reports whether the set contains the user.
func (u Users) Allow(uid uint32) bool { return slices.Contains(u, uid) || slices.Contains(u, Everyone) }

func (u Users) String() string {
	names := make([]string, len(u))
	for i, uid := range u {
		names[i] = fmt.Sprint(uid)
	}
	return strings.Join(names, ", ")
}
