package uds

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// PeerOf returns the peer credentials of a unix socket connection.
func PeerOf(conn net.Conn) (Peer, error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("uds: a connection of type %T has no peer credentials", conn)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("uds: reading the credentials of the client: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, fmt.Errorf("uds: reading the credentials of the client: %w", err)
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("uds: reading the credentials of the client: %w", credErr)
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
}
