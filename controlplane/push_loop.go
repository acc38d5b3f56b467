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
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// pushLoop pushes changes of the stores to the proxies. It merges the changes of a short time into one batch, builds
// the next snapshot from the last one and the batch, and pushes it.
type pushLoop struct {
	store       config.Store
	mesh        func() *meshconfig.MeshConfig
	trustDomain string
	roots       func() []byte // root certificates of the certificate authority, in PEM
	virtual     netip.Prefix
	keys        *jwks.Fetcher
	keysByProxy bool
	// startsProxies is Config.StartsProxies.
	startsProxies bool
	// gatewayAccounts is passed to snapshot.Inputs.
	gatewayAccounts *snapshot.GatewayAccounts
	endpoints       *registry.EndpointPolicy
	debounce        Debounce
	server          *xds.Server
	metrics         *metrics
	analysis        *analysisLoop
	changes         *changeLog
	log             *slog.Logger

	wake chan struct{} // has one element when a change is pending

	mu      sync.Mutex
	changed map[config.Key]struct{}
	full    bool // everything may have changed
	// revocations: the revocation lists have changed.
	revocations bool
	first       time.Time
	building    bool // build is processing changes that were already removed from changed
	latest      *snapshot.Snapshot

	// Only the goroutine of the method run uses the fields below.
	keySets                       *snapshot.KeySets
	lastRoots                     string
	configuredMesh, completedMesh *meshconfig.MeshConfig // of the last build, before and after meshConfig completed it
}

// note records that the resources keys changed. It does not block, because stores call it.
func (f *pushLoop) note(keys []config.Key) {
	f.mu.Lock()
	for _, k := range keys {
		f.changed[k] = struct{}{}
	}
	f.wakeUp()
	f.mu.Unlock()
}

// noteAll records that everything may have changed.
func (f *pushLoop) noteAll() {
	f.mu.Lock()
	f.full = true
	f.wakeUp()
	f.mu.Unlock()
}

// noteRevocations records that the revocation lists changed.
func (f *pushLoop) noteRevocations() {
	f.mu.Lock()
	f.revocations = true
	f.wakeUp()
	f.mu.Unlock()
}

func (f *pushLoop) wakeUp() {
	if f.first.IsZero() {
		f.first = time.Now()
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run builds and pushes the first snapshot immediately, and then one snapshot for each batch of changes, until ctx
// ends.
func (f *pushLoop) run(ctx context.Context) {
	f.noteAll()
	f.build()
	var last time.Time // time of the last batch
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		// The first change after a quiet time is pushed immediately. Changes that soon follow another one are merged,
		// because further changes are likely.
		if time.Since(last) < f.debounce.quietTime() && !f.waitForPause(ctx) {
			return
		}
		f.build()
		last = time.Now()
	}
}

// waitForPause waits until there was no change for Debounce.After, but at most Debounce.Max. It returns false if ctx
// ended.
func (f *pushLoop) waitForPause(ctx context.Context) bool {
	maxDelay := time.NewTimer(f.debounce.Max)
	defer maxDelay.Stop()
	quiet := time.NewTimer(f.debounce.After)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-quiet.C:
			return true
		case <-maxDelay.C:
			return true
		case <-f.wake:
			quiet.Reset(f.debounce.After)
		}
	}
}

// takeChanges returns and clears the recorded changes. firstChange is the time of the first one. If keys is nil,
// everything may have changed. some is false if there are no changes.
func (f *pushLoop) takeChanges() (keys []config.Key, revocations bool, firstChange time.Time, some bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	some = f.full || f.revocations || len(f.changed) > 0
	if !f.full {
		keys = make([]config.Key, 0, len(f.changed))
		for k := range f.changed {
			keys = append(keys, k)
		}
	}
	firstChange, revocations = f.first, f.revocations
	f.changed, f.full, f.revocations, f.first = map[config.Key]struct{}{}, false, false, time.Time{}
	f.building = some
	return keys, revocations, firstChange, some
}

// pending reports whether there are changes that have not been pushed yet.
func (f *pushLoop) pending() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.building || f.full || f.revocations || len(f.changed) > 0
}

func (f *pushLoop) build() {
	keys, revocations, since, some := f.takeChanges()
	if !some {
		return
	}
	start := time.Now()
	previous := f.snapshot()
	next := snapshot.Build(previous, f.inputs(), keys)
	change := snapshot.Diff(previous, next, keys)
	change.Revocations = revocations
	f.changes.record(keys, start)
	f.mu.Lock()
	f.latest = next
	f.mu.Unlock()
	f.server.PushSince(next, change, since)
	f.mu.Lock()
	f.building = false
	f.mu.Unlock()
	f.metrics.recordBuild(start, since)
	f.metrics.countTriggers(change)
	for _, key := range keys {
		f.metrics.updates.WithLabelValues(string(key.Kind)).Inc()
	}
	f.keys.SetAddresses(next.KeyAddresses())
	f.log.Debug("pushed the changed configuration to all connections", "changedDocuments", len(keys), "fullPush", change.Full, "buildTime", time.Since(start))
	f.analysis.schedule()
}

// inputs returns the inputs of the next snapshot. If the key sets are unchanged, it returns the same pointer as before,
// by which the snapshot detects this.
func (f *pushLoop) inputs() snapshot.Inputs {
	if sets := f.keys.Sets(); f.keySets == nil || !maps.Equal(f.keySets.ByAddress, sets) {
		f.keySets = &snapshot.KeySets{ByAddress: sets}
	}
	return snapshot.Inputs{
		Store: f.store, Mesh: f.meshConfig(), Virtual: f.virtual, Keys: f.keySets, KeysByProxy: f.keysByProxy, GatewayAccounts: f.gatewayAccounts,
		Endpoints: f.endpoints, StartsProxies: f.startsProxies,
	}
}

// noteKeys records that the fetched keys of token issuers changed.
func (f *pushLoop) noteKeys() {
	var changed []config.Key
	for _, r := range f.store.List(config.RequestAuthentication) {
		changed = append(changed, r.Key)
	}
	f.note(changed)
}

// meshConfig returns the mesh configuration, completed with the authority's trust domain and roots. If it is unchanged,
// meshConfig returns the same pointer as before, by which the snapshot detects this.
func (f *pushLoop) meshConfig() *meshconfig.MeshConfig {
	configured, roots := f.mesh(), string(f.roots())
	if f.completedMesh != nil && configured == f.configuredMesh && roots == f.lastRoots {
		return f.completedMesh
	}
	completed := &meshconfig.MeshConfig{}
	if configured != nil {
		completed = proto.Clone(configured).(*meshconfig.MeshConfig)
	}
	completed.TrustDomain = f.trustDomain
	completed.CaCertificates = append(completed.CaCertificates, &meshconfig.MeshConfig_CertificateData{
		CertificateData: &meshconfig.MeshConfig_CertificateData_Pem{Pem: roots},
	})
	f.configuredMesh, f.lastRoots, f.completedMesh = configured, roots, completed
	return completed
}

// snapshot returns the newest snapshot, or nil before the first one.
func (f *pushLoop) snapshot() *snapshot.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.latest
}
