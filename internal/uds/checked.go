package uds

import (
	"fmt"
	"log/slog"
	"net"
)

// Only lets in connections from the users named, by what the kernel says of the peer, and closes all others at once. A
// refused peer is logged. It is for servers that do not speak gRPC; those take ServerCredentials.
func Only(l net.Listener, users Users, logger *slog.Logger) net.Listener {
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
			c.logger.Warn("connection refused", "socket", c.Addr().String(), "error", err)
			_ = conn.Close()
			continue
		}
		return conn, nil
	}
}

// check says who is at the other end, and gives an error when that user may not be there.
func (u Users) check(conn net.Conn) (Peer, error) {
	peer, err := PeerOf(conn)
	if err == nil && !u.allow(peer.UID) {
		err = fmt.Errorf("process %d of user %d may not connect to %s: only users %s may", peer.PID, peer.UID, conn.LocalAddr(), u)
	}
	return peer, err
}
