package controlplane

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/jwks"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// feed turns changes of the stores into snapshots and pushes: it waits until the changes pause, builds the next snapshot
// from the last one, and pushes it.
type feed struct {
	store       config.Store
	mesh        func() *meshconfig.MeshConfig
	trustDomain string
	roots       func() []byte // of the authority, in PEM
	virtual     netip.Prefix
	keys        *jwks.Fetcher
	keysByProxy bool
	debounce    Debounce
	server      *xds.Server
	metrics     *metrics
	findings    *findings
	journal     *journal
	log         *slog.Logger

	wake chan struct{} // a change waits; holds one

	mu      sync.Mutex
	changed map[config.Key]struct{}
	full    bool // anything may have changed
	first   time.Time
	busy    bool // changes were taken, and are not pushed yet
	latest  *snapshot.Snapshot

	// The rest is of the goroutine that builds.
	keySets          *snapshot.KeySets
	givenRoots       string
	given, completed *meshconfig.MeshConfig // of the last build: as the source gave it, and with the trust domain
}

// note records that resources changed. It does not block, as stores demand.
func (f *feed) note(keys []config.Key) {
	f.mu.Lock()
	for _, k := range keys {
		f.changed[k] = struct{}{}
	}
	f.begin()
	f.mu.Unlock()
}

// noteAll records that anything may have changed.
func (f *feed) noteAll() {
	f.mu.Lock()
	f.full = true
	f.begin()
	f.mu.Unlock()
}

func (f *feed) begin() {
	if f.first.IsZero() {
		f.first = time.Now()
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run builds the first snapshot at once, and then one for each batch of changes.
func (f *feed) run(ctx context.Context) {
	f.noteAll()
	f.build()
	var last time.Time // of a batch
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		// The first change of a quiet time goes at once. Where one follows another, more are to be expected.
		if time.Since(last) < f.debounce.quiet() && !f.settle(ctx) {
			return
		}
		f.build()
		last = time.Now()
	}
}

// settle waits for a pause in the changes, but not for ever.
func (f *feed) settle(ctx context.Context) bool {
	longest := time.NewTimer(f.debounce.Max)
	defer longest.Stop()
	quiet := time.NewTimer(f.debounce.After)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-quiet.C:
			return true
		case <-longest.C:
			return true
		case <-f.wake:
			quiet.Reset(f.debounce.After)
		}
	}
}

// take gives what changed since the last time; nil keys mean that anything may have.
func (f *feed) take() (keys []config.Key, since time.Time, some bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	some = f.full || len(f.changed) > 0
	if !f.full {
		keys = make([]config.Key, 0, len(f.changed))
		for k := range f.changed {
			keys = append(keys, k)
		}
	}
	since = f.first
	f.changed, f.full, f.first = map[config.Key]struct{}{}, false, time.Time{}
	f.busy = some
	return keys, since, some
}

// pending says whether changes are known that no push has gone out for.
func (f *feed) pending() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.busy || f.full || len(f.changed) > 0
}

func (f *feed) build() {
	keys, since, some := f.take()
	if !some {
		return
	}
	start := time.Now()
	previous := f.snapshot()
	next := snapshot.Build(previous, f.inputs(), keys)
	change := snapshot.Diff(previous, next, keys)
	f.journal.note(keys, start)
	f.journal.versions.follow(previous, next)
	f.mu.Lock()
	f.latest = next
	f.mu.Unlock()
	f.server.PushSince(next, change, since)
	f.mu.Lock()
	f.busy = false
	f.mu.Unlock()
	f.metrics.built(start, since)
	f.metrics.triggered(change)
	for _, key := range keys {
		f.metrics.updates.WithLabelValues(string(key.Kind)).Inc()
	}
	f.keys.Want(next.KeyAddresses())
	f.log.Debug("configuration pushed", "changed", len(keys), "full", change.Full, "build", time.Since(start))
	f.findings.note()
}

// inputs are what the next snapshot is built from. Unchanged keys are the same pointer.
func (f *feed) inputs() snapshot.Inputs {
	if sets := f.keys.Sets(); f.keySets == nil || !maps.Equal(f.keySets.ByAddress, sets) {
		f.keySets = &snapshot.KeySets{ByAddress: sets}
	}
	return snapshot.Inputs{
		Store: f.store, Mesh: f.meshConfig(), Virtual: f.virtual, Keys: f.keySets, KeysByProxy: f.keysByProxy,
	}
}

// noteKeys records that keys of token issuers changed.
func (f *feed) noteKeys() {
	var changed []config.Key
	for _, r := range f.store.List(config.RequestAuthentication) {
		changed = append(changed, r.Key)
	}
	f.note(changed)
}

// meshConfig completes the mesh configuration by the authority's trust domain and roots. An unchanged configuration is
// the same pointer, by which the snapshot knows that it is unchanged.
func (f *feed) meshConfig() *meshconfig.MeshConfig {
	given, roots := f.mesh(), string(f.roots())
	if f.completed != nil && given == f.given && roots == f.givenRoots {
		return f.completed
	}
	completed := &meshconfig.MeshConfig{}
	if given != nil {
		completed = proto.Clone(given).(*meshconfig.MeshConfig)
	}
	completed.TrustDomain = f.trustDomain
	completed.CaCertificates = append(completed.CaCertificates, &meshconfig.MeshConfig_CertificateData{
		CertificateData: &meshconfig.MeshConfig_CertificateData_Pem{Pem: roots},
	})
	f.given, f.givenRoots, f.completed = given, roots, completed
	return completed
}

// snapshot is the newest one; nil before the first.
func (f *feed) snapshot() *snapshot.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.latest
}
