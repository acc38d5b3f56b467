package uds

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"google.golang.org/grpc/credentials"
)

// ServerCredentials returns gRPC server credentials that accept only connections of these users. They identify the user
// by the kernel's peer credentials, and log rejected connections.
func ServerCredentials(users Users, logger *slog.Logger) credentials.TransportCredentials {
	return &peerCredentials{users: users, logger: logger}
}

type peerCredentials struct {
	users  Users
	logger *slog.Logger
}

// AuthInfo contains the process that opened a connection.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Peer
}

// AuthType implements credentials.AuthInfo.
func (AuthInfo) AuthType() string { return "unix-peer" }

func (c *peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	peer, err := c.users.check(conn)
	if err != nil {
		c.logger.Warn("connection rejected", "socket", conn.LocalAddr().String(), "error", err)
		return nil, nil, err
	}
	info := AuthInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Peer: peer}
	return conn, info, nil
}

func (c *peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("uds: these are credentials for servers only")
}

func (c *peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peer"}
}

func (c *peerCredentials) Clone() credentials.TransportCredentials { return c }

func (c *peerCredentials) OverrideServerName(string) error { return nil }

// Peer is the process that opened the connection to a unix socket, with its IDs at that time.
type Peer struct {
	PID int32
	UID uint32
	GID uint32
}
