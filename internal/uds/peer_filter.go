package uds

import (
	"fmt"
	"log/slog"
	"net"
)

// FilterPeers returns a listener that accepts only connections of these users, and closes all others. It identifies the
// user by the kernel's peer credentials, and logs rejected connections. gRPC servers use ServerCredentials instead.
func FilterPeers(l net.Listener, users Users, logger *slog.Logger) net.Listener {
	return &checked{Listener: l, users: users, logger: logger}
}

type checked struct {
	net.Listener
	users  Users
	logger *slog.Logger
}

func (c *checked) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if _, err := c.users.check(conn); err != nil {
			c.logger.Warn("connection rejected", "socket", c.Addr().String(), "error", err)
			_ = conn.Close()
			continue
		}
		return conn, nil
	}
}

// check returns the peer of a connection. It returns an error if u does not contain the peer's user.
func (u Users) check(conn net.Conn) (Peer, error) {
	peer, err := PeerOf(conn)
	if err == nil && !u.Allow(peer.UID) {
		err = fmt.Errorf("process %d of user %d may not connect to %s: only users %s may", peer.PID, peer.UID, conn.LocalAddr(), u)
	}
	return peer, err
}
