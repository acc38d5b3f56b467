package command

import (
	"context"
	"net"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

// externalServerTimeout is the maximum wait until another process serves the certificate socket.
// externalServerPollInterval is the interval between checks.
const (
	externalServerTimeout      = 10 * time.Second
	externalServerPollInterval = 100 * time.Millisecond
)

// detectExternalServer detects whether another process serves the certificate socket, and which service it serves. A
// process that also listens on the control socket is a running agent and is ignored. If wait is set, it waits until a
// server is found or externalServerTimeout has passed.
func detectExternalServer(socket, control string, wait bool) sds.ExternalServer {
	for end := time.Now().Add(externalServerTimeout); ; time.Sleep(externalServerPollInterval) {
		switch found := sds.ProbeSocket(context.Background(), socket); {
		case found != sds.ExternalNone && isSameServer(socket, control):
			return sds.ExternalNone
		case found != sds.ExternalNone, !wait, time.Now().After(end):
			return found
		}
	}
}

// isSameServer reports whether the same process listens on both sockets.
func isSameServer(a, b string) bool {
	first, second := listenerPID(a), listenerPID(b)
	return first != 0 && first == second
}

// listenerPID returns the PID of the process that listens on socket, or 0 if the PID is unknown.
func listenerPID(socket string) int32 {
	conn, err := net.DialTimeout("unix", socket, config.PeerDialTimeout)
	if err != nil {
		return 0
	}
	defer conn.Close()
	peer, err := uds.PeerOf(conn)
	if err != nil {
		return 0
	}
	return peer.PID
}
