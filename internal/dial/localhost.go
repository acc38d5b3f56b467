package dial

import (
	"context"
	"encoding/hex"
	"net"
	"strings"
)

// socketDomain is the last label of host names that encode the path of a Unix socket.
const socketDomain = ".unix"

// SocketHost returns a host name for URLs. LocalhostDialer connects it to the Unix socket at path.
func SocketHost(path string) string { return hex.EncodeToString([]byte(path)) + socketDomain }

// parseSocketHost returns the path that SocketHost encoded in host.
func parseSocketHost(host string) (path string, ok bool) {
	name, ok := strings.CutSuffix(host, socketDomain)
	text, err := hex.DecodeString(name)
	return string(text), ok && err == nil
}

// LocalhostDialer returns a dial function based on d. It connects "localhost" to 127.0.0.1, or to ::1 if that fails,
// independent of /etc/hosts (RFC 6761): on hosts with IPv6 only, servers listen on ::1. It also connects the host names
// of SocketHost.
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
