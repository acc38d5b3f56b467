package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

// leaseName is the name of the Lease of the default revision. The names of other revisions' Leases end with the revision.
const leaseName = "pilotfish-leader"

// IdentityConfig configures an Identity.
type IdentityConfig struct {
	Client *Client
	// Namespace is the namespace of the control plane, which contains its Secrets and its Lease.
	Namespace string
	// Revision is the revision of the control plane; "" is the default revision.
	Revision string
	// HasExternalCA is true if the files of an external CA are in a directory. The Secrets then contain only the key
	// that signs tokens.
	HasExternalCA bool
	// Audiences are the accepted audiences of tokens; default: ca.TokenAudience.
	Audiences []string
	// Live looks up pods and service accounts.
	Live   LiveObjects
	Logger *slog.Logger
}

// Identity connects the certificate authority with a cluster: it verifies tokens of service accounts, stores the
// authority in Secrets, publishes the root certificates in all namespaces, and elects a leader among the replicas.
type Identity struct {
	// Store and Material are the store of the authority and, if there is one, its external CA. Tokens verifies tokens.
	Store    ca.Store
	Material ca.PlugIn
	Tokens   ca.TokenVerifier

	keys     *tokenKeys
	election *election
	roots    *rootsPublisher
}

// OpenIdentity reads the state of the authority. It fails if the API server does not respond.
func OpenIdentity(ctx context.Context, c IdentityConfig) (*Identity, error) {
	if len(c.Audiences) == 0 {
		c.Audiences = []string{ca.TokenAudience}
	}
	core, coreErr := c.Client.REST(corev1.SchemeGroupVersion)
	authentication, authenticationErr := c.Client.REST(authenticationv1.SchemeGroupVersion)
	coordination, coordinationErr := c.Client.REST(coordinationv1.SchemeGroupVersion)
	if err := errors.Join(coreErr, authenticationErr, coordinationErr); err != nil {
		return nil, err
	}
	i := &Identity{keys: newTokenKeys(core, c.Logger), election: newElection(coordination, c)}
	i.roots = newRootsPublisher(core, i.election.IsLeader, c.Logger)
	i.election.changed = i.roots.PublishAll
	i.Tokens = &tokenVerifier{
		keys: i.keys, reviews: newTokenReviews(authentication, c.Audiences), live: c.Live, audiences: c.Audiences, now: time.Now,
	}
	secrets := secretClient{rest: core, namespace: c.Namespace}
	if c.HasExternalCA {
		i.Store = plugInStore{secrets}
		return i, nil
	}
	var err error
	if i.Store, i.Material, err = findAuthority(ctx, secrets); err != nil {
		return nil, fmt.Errorf("the certificate authority: %w", err)
	}
	return i, nil
}

func newElection(client rest.Interface, c IdentityConfig) *election {
	name := leaseName
	if c.Revision != "" {
		name += "-" + c.Revision
	}
	host, _ := os.Hostname() // a random name identifies the replica, too
	return &election{
		rest: client, namespace: c.Namespace, name: name, identity: host + "_" + strings.ToLower(rand.Text()), log: c.Logger,
		interval: renewInterval, now: time.Now, changed: func() {},
	}
}

// IsLeader reports whether this replica leads. Two replicas may consider themselves the leader for a moment, so the
// writes of a leader must be compare-and-swap.
func (i *Identity) IsLeader() bool { return i.election.IsLeader() }

// Run fetches keys, publishes the roots that roots returns, and takes part in the election, until ctx ends.
func (i *Identity) Run(ctx context.Context, roots func() []byte) {
	var running sync.WaitGroup
	running.Go(func() { i.keys.Run(ctx) })
	running.Go(func() { i.election.Run(ctx) })
	running.Go(func() { i.roots.Run(ctx, roots) })
	running.Wait()
}
