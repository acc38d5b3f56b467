package dial

import (
	"context"
	"encoding/hex"
	"net"
	"strings"
)

// socketDomain is the last label of host names that encode the path of a unix socket.
const socketDomain = ".unix"

// SocketHost returns a host name for URLs that encodes the path of a unix socket. LocalhostDialer connects to that
// socket.
func SocketHost(path string) string { return hex.EncodeToString([]byte(path)) + socketDomain }

// parseSocketHost returns the path that SocketHost encoded in host.
func parseSocketHost(host string) (path string, ok bool) {
	name, ok := strings.CutSuffix(host, socketDomain)
	text, err := hex.DecodeString(name)
	return string(text), ok && err == nil
}

// LocalhostDialer returns a dial function based on d. It connects "localhost" to 127.0.0.1 or, if that fails, to ::1,
// because on hosts that only have IPv6, servers listen on ::1. It does not read /etc/hosts (RFC 6761). For host names
// that SocketHost returned, it connects to the unix socket.
func LocalhostDialer(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if path, ok := parseSocketHost(host); ok {
			return d.DialContext(ctx, "unix", path)
		}
		if err != nil || host != "localhost" {
			return d.DialContext(ctx, network, address)
		}
		conn, err := d.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		if conn, v6 := d.DialContext(ctx, network, net.JoinHostPort("::1", port)); v6 == nil {
			return conn, nil
		}
		return nil, err
	}
}
