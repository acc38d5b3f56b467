package dial

import (
	"net"
	"net/http"
	"time"
)

// LocalhostClient returns a client for ports of this machine. It ignores HTTP_PROXY, and opens a connection for each
// request: a draining listener would still serve an existing one.
func LocalhostClient(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: LocalhostDialer(&net.Dialer{})}}
}
