package dial

import (
	"net"
	"net/http"
	"time"
)

// LocalhostClient returns a client for ports of this machine. It ignores HTTP_PROXY. It opens a new connection for each
// request, because a draining listener still serves existing connections.
func LocalhostClient(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: LocalhostDialer(&net.Dialer{})}}
}
