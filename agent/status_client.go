package agent

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// StatusClient returns an HTTP client for the agent's own status server, which may listen on a unix socket instead of a
// port.
func (a *Agent) StatusClient(timeout time.Duration) *http.Client {
	client := dial.LocalhostClient(timeout)
	if socket := a.bootstrap.StatusSocket; socket != "" {
		client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	}
	return client
}

// StatusURL returns the URL of a path on the agent's own status port.
func (a *Agent) StatusURL(path string) string {
	if a.bootstrap.StatusSocket != "" {
		return "http://localhost" + path
	}
	host, port, _ := net.SplitHostPort(a.bootstrap.StatusAddress())
	return "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + path // an empty host means all addresses
}
