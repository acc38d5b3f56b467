package uds

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
)

// SecretHeader is the request header in which the agent's Envoy sends the secret.
const SecretHeader = "x-pilotfish-agent-secret"

// secretSize is the length of a secret in bytes, before it is encoded.
const secretSize = 32

// minRefusalInterval is the minimum time between two log lines about rejected requests, because any local process can
// cause them.
const minRefusalInterval = 10 * time.Second

// NewSecret returns 32 random bytes in hexadecimal.
func NewSecret() string {
	secret := make([]byte, secretSize)
	_, _ = rand.Read(secret) // never returns an error
	return hex.EncodeToString(secret)
}

// Guard rejects requests without the agent's secret. Only the static clusters of Envoy's bootstrap send it. Peer
// credentials are not sufficient to identify Envoy's own requests, because a route or cluster in Envoy's configuration
// can forward the request of another client to the socket. The methods of Guard are safe for concurrent use. A nil
// Guard accepts every request.
type Guard struct {
	// Secret is the required value of the header.
	Secret string
	// IsExempt reports whether requests of a peer need no secret. It must not block.
	IsExempt func(Peer) bool
	Logger   *slog.Logger

	refusals loglimit.Limiter
}

// Check returns a gRPC status error if the secret is missing and the peer is not exempt. If the secret is wrong, it
// returns an error for every peer. values contains the values of SecretHeader.
func (g *Guard) Check(peer Peer, values []string) error {
	switch {
	case g == nil, len(values) == 0 && g.IsExempt(peer):
		return nil
	case len(values) == 1 && subtle.ConstantTimeCompare([]byte(values[0]), []byte(g.Secret)) == 1:
		return nil
	}
	g.logRefusal(peer)
	return status.Error(codes.PermissionDenied, "the request lacks the secret of the agent's Envoy")
}

// logRefusal logs at most one line per minRefusalInterval, with the number of rejected requests since the last line.
func (g *Guard) logRefusal(peer Peer) {
	unlogged, ok := g.refusals.Allow(time.Now(), minRefusalInterval)
	if !ok {
		return
	}
	g.Logger.Warn("rejected a request on the agent's socket, because it lacks the secret of the agent's Envoy; "+
		"if the process is Envoy, an endpoint in its configuration leads to this socket: remove that endpoint",
		"pid", peer.PID, "uid", peer.UID, "suppressedLines", unlogged)
}
