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

// minRefusalInterval is the minimum time between two log lines about refused requests: outsiders can cause refusals.
const minRefusalInterval = 10 * time.Second

// NewSecret returns 32 random bytes in hexadecimal.
func NewSecret() string {
	secret := make([]byte, secretSize)
	_, _ = rand.Read(secret) // never fails: see its documentation
	return hex.EncodeToString(secret)
}

// Guard refuses requests without the secret that only the static clusters of Envoy's bootstrap send. Peer credentials do
// not suffice for Envoy: a route or cluster of its configuration can lead an outsider's request to a socket.
// Its methods are safe for concurrent use. A nil Guard accepts every request.
type Guard struct {
	// Secret is what the header must hold.
	Secret string
	// IsExempt reports whether a peer needs no secret. It must not block.
	IsExempt func(Peer) bool
	Logger   *slog.Logger

	refusals loglimit.Limiter
}

// Check returns a gRPC status error if the peer must send the secret and did not. Values are those of SecretHeader. A
// wrong secret is refused from every peer.
func (g *Guard) Check(peer Peer, values []string) error {
	switch {
	case g == nil, len(values) == 0 && g.IsExempt(peer):
		return nil
	case len(values) == 1 && subtle.ConstantTimeCompare([]byte(values[0]), []byte(g.Secret)) == 1:
		return nil
	}
	g.logRefusal(peer)
	return status.Error(codes.PermissionDenied, "this request lacks the secret of the agent's Envoy")
}

// logRefusal logs at most one line per interval, with the number of refusals since the last one.
func (g *Guard) logRefusal(peer Peer) {
	unlogged, ok := g.refusals.Allow(time.Now(), minRefusalInterval)
	if !ok {
		return
	}
	g.Logger.Warn("a request on the agent's socket is refused, because it lacks the secret of the agent's Envoy; "+
		"if the process is Envoy, an endpoint in its configuration leads to this socket: remove that endpoint",
		"pid", peer.PID, "uid", peer.UID, "unlogged", unlogged)
}
