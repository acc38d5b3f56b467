package translate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// listCache caches lists of resources that the proxies of one scope share. Without the cache, if many proxies request
// many resources, the control plane spends most of its time looking up single resources. The cache is cleared when it
// has maxLists entries. This happens only with many different labels, localities or EnvoyFilters. Callers must not
// modify a list.
type listCache struct {
	mu      sync.Mutex
	entries map[any]func() ([]*xds.Resource, error)
}

const maxLists = 64

func newListCache() any { return &listCache{entries: map[any]func() ([]*xds.Resource, error){}} }

// get returns the list for a key. If necessary, it builds the list. The key must contain all values on which the list
// depends, except the scope or snapshot that owns the cache.
func (l *listCache) get(key any, build func() ([]*xds.Resource, error)) ([]*xds.Resource, error) {
	l.mu.Lock()
	list := l.entries[key]
	if list == nil {
		if len(l.entries) >= maxLists {
			clear(l.entries)
		}
		list = sync.OnceValues(build)
		l.entries[key] = list
	}
	l.mu.Unlock()
	out, err := list()
	return slices.Clip(out), err
}

// scopeListsKey identifies the list cache of a scope. snapshotListsKey identifies the list cache of a scope within one
// snapshot.
type scopeListsKey struct{}

type snapshotListsKey struct{ scope *snapshot.Scope }

// scopeLists returns a list cache that exists as long as the scope.
func (v proxyView) scopeLists() *listCache {
	return v.scope.Memo(scopeListsKey{}, newListCache).(*listCache)
}

// snapshotLists returns the scope's list cache for this snapshot. It is used for lists that depend on endpoints.
func (v proxyView) snapshotLists() *listCache {
	return v.s.Memo(snapshotListsKey{v.scope}, newListCache).(*listCache)
}

// proxyClass contains the attributes of a proxy, except its scope, on which service clusters and their endpoints
// depend. Proxies with equal classes share lists. The type must be comparable.
type proxyClass struct {
	proxyType    Type
	interception Interception
	ipv4, ipv6   bool
	envoy        [3]uint32
	// locality contains the proxy's locality and labels, if the selection of endpoints depends on them.
	locality string
	// selfDiscovery: the proxy receives the zones of its own service's endpoints (see zone_aware.go).
	selfDiscovery bool
	// account determines which Secrets the proxy may use. It is set only if DestinationRules refer to Secrets.
	account account
	// patches is the key of the EnvoyFilter patches of clusters.
	patches string
}

// account is an authenticated service account; the zero value may not use any Secrets.
type account struct {
	authenticated bool
	name          string
	ofGateway     bool // it may use the Secrets to which DestinationRules refer for gateways
}

func (v proxyView) account() account {
	if !v.s.HasCredentials() || !v.mayHaveSecrets() {
		return account{}
	}
	return account{authenticated: true, name: v.p.ServiceAccount, ofGateway: v.p.Type == Router && v.s.IsAnyGatewayAccount(v.p.Namespace, v.p.ServiceAccount)}
}

func (v proxyView) proxyClass() proxyClass {
	return proxyClass{
		proxyType: v.p.Type, interception: v.p.Interception, ipv4: v.p.IPv4, ipv6: v.p.IPv6, envoy: v.p.EnvoyVersion,
		locality: v.localityClass(), selfDiscovery: v.p.SelfDiscovery, account: v.account(), patches: v.patches.ClustersKey(),
	}
}

// usesLocalityKey is a cache key. The cached value is true if the endpoints of any service depend on the caller's
// locality.
type usesLocalityKey struct{}

func (v proxyView) localityClass() string {
	if !v.scope.Memo(usesLocalityKey{}, func() any { return v.usesLocality() }).(bool) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q", v.p.locality(v.s), v.p.node(v.s))
	for _, name := range slices.Sorted(maps.Keys(v.p.Labels)) {
		fmt.Fprintf(&b, " %q=%q", name, v.p.Labels[name])
	}
	return b.String()
}

func (v proxyView) usesLocality() bool {
	return slices.ContainsFunc(listServiceClusters(v.s, v.p), func(c serviceCluster) bool { return c.localityKey != "" || c.svc.NodeLocal })
}

// serviceClusters returns the clusters of the visible services, built once for all proxies of the class.
func (v proxyView) serviceClusters() ([]*xds.Resource, error) {
	return v.snapshotLists().get(v.proxyClass(), func() ([]*xds.Resource, error) {
		clusters := listServiceClusters(v.s, v.p)
		out := make([]*xds.Resource, 0, len(clusters))
		for _, c := range clusters {
			patches := c.patched(v.p, v.patches)
			if patches.Removes() {
				continue
			}
			r, err := c.resource(v.s, patches)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
		return out, nil
	})
}

// minCachedNames is the minimum number of names for which a list of load assignments is cached.
const minCachedNames = 64

// assignmentsKey identifies a list of cluster names by the address and length of its slice, and the class of the
// proxies that share the list.
type assignmentsKey struct {
	first *string
	n     int
	class proxyClass
}

// serviceAssignments returns the load assignments of the clusters whose names are in names. Proxies with the same
// clusters pass the same slice of names. For such a slice, the result is built once.
func (v proxyView) serviceAssignments(names []string) ([]*xds.Resource, error) {
	if len(names) < minCachedNames {
		return v.makeAssignments(names)
	}
	key := assignmentsKey{first: unsafe.SliceData(names), n: len(names), class: v.proxyClass()}
	return v.snapshotLists().get(key, func() ([]*xds.Resource, error) { return v.makeAssignments(names) })
}

func (v proxyView) makeAssignments(names []string) ([]*xds.Resource, error) {
	found := findAssignmentClusters(v.s, v.p, names)
	out := make([]*xds.Resource, 0, len(found))
	for _, c := range found {
		r, err := c.endpointsResource(v)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}
