package mesh

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// The file names of the unix sockets with which the mesh controls an instance's proxy. They are in the agent's
// directory. Only the mesh's user and root may connect.
const (
	controlSocketPath = "etc/istio/proxy/control"
	adminSocketPath   = "etc/istio/proxy/admin/envoy.sock"
)

// Hosts in URLs. Each selects one of these sockets.
const (
	controlHost = "agent-control"
	adminHost   = "envoy-admin"
)

// dialFunc connects to an address.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialSockets returns a function that dials. For controlHost and adminHost it connects to the sockets in an agent's
// directory, and for other hosts it calls dial.
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

// dialSocket connects to a unix socket. If the path is too long for a socket address, it uses a path through the file
// descriptor of the socket's directory.
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
