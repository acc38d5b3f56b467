package portowner

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
)

// Connection is a local socket of a TCP connection.
type Connection struct {
	UID   uint32 // user of the process that opened the socket
	inode string
}

// FindConnection returns the socket with the addresses local and remote in the network namespace of this process. It
// returns an error if the process has closed the socket.
func FindConnection(local, remote netip.AddrPort) (Connection, error) {
	local, remote = unmap(local), unmap(remote)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return Connection{}, err
		}
		s, found := findSocket(f, func(s socket) bool { return s.local == local && s.remote == remote && s.inode != closedInode })
		_ = f.Close()
		if found {
			return Connection{UID: s.uid, inode: s.inode}, nil
		}
	}
	return Connection{}, fmt.Errorf("no process has the connection from %s to %s open", local, remote)
}

// closedInode is the inode number of a socket that was closed by its process, while the kernel still terminates the
// connection.
const closedInode = "0"

// IsOpenIn reports whether the process pid has the connection's socket open. It returns an error if this process may
// not read the other process's file descriptors.
func (c Connection) IsOpenIn(pid int) (bool, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err == nil && link == "socket:["+c.inode+"]" {
			return true, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			return false, err
		}
	}
	return false, nil
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
