package mesh

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// The unix sockets with which the mesh controls an instance's proxy, in its agent's directory. Only the mesh's user and
// root may connect.
const (
	controlSocketPath = "etc/istio/proxy/control"
	adminSocketPath   = "etc/istio/proxy/admin/envoy.sock"
)

// The hosts in URLs that select these sockets.
const (
	controlHost = "agent-control"
	adminHost   = "envoy-admin"
)

// dialFunc connects to an address.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialSockets returns a function that dials controlHost and adminHost at the sockets in an agent's directory, and other
// hosts with dial.
func dialSockets(agentDir string, dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		switch host, _, _ := net.SplitHostPort(address); host {
		case controlHost:
			return dialSocket(ctx, filepath.Join(agentDir, controlSocketPath))
		case adminHost:
			return dialSocket(ctx, filepath.Join(agentDir, adminSocketPath))
		}
		return dial(ctx, network, address)
	}
}

// dialSocket connects to a unix socket. If the path is too long for an address, it uses its directory's file
// descriptor.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	if len(path) <= maxSocketPath {
		return dialer.DialContext(ctx, "unix", path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
