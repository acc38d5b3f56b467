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

// lists are lists of resources that proxies of one scope have in common. To look each resource up costs more than anything
// else, where many proxies ask for many. There are few, unless labels, places or EnvoyFilters make many: then all go when
// there are too many. Nobody may change a list.
type lists struct {
	mu   sync.Mutex
	made map[any]func() ([]*xds.Resource, error)
}

const mostLists = 64

func newLists() any { return &lists{made: map[any]func() ([]*xds.Resource, error){}} }

// get gives the list of a key, which holds all that it depends on beside what the lists belong to.
func (l *lists) get(key any, build func() ([]*xds.Resource, error)) ([]*xds.Resource, error) {
	l.mu.Lock()
	list := l.made[key]
	if list == nil {
		if len(l.made) >= mostLists {
			clear(l.made)
		}
		list = sync.OnceValues(build)
		l.made[key] = list
	}
	l.mu.Unlock()
	out, err := list()
	return slices.Clip(out), err
}

// listsKey is where lists are in the memory of a scope; ofScope where those of a scope are in that of a snapshot.
type listsKey struct{}

type ofScope struct{ scope *snapshot.Scope }

// scopeLists stay as long as the scope does.
func (v view) scopeLists() *lists { return v.scope.Memo(listsKey{}, newLists).(*lists) }

// snapshotLists are of the scope in this snapshot alone: what is in them depends on endpoints.
func (v view) snapshotLists() *lists { return v.s.Memo(ofScope{v.scope}, newLists).(*lists) }

// alike is what of a proxy the clusters of services and their endpoints depend on, beside its scope. It can be compared.
type alike struct {
	proxyType    Type
	interception Interception
	ipv4, ipv6   bool
	envoy        [3]uint32
	// place is where it is, and what it is, where endpoints are chosen by that.
	place string
	// zoned: it knows which zones the like of it are in.
	zoned bool
	// account is whose Secrets it may have, where rules name any.
	account account
	// patches are those of EnvoyFilters to clusters.
	patches string
}

// account is a service account that proved who it is; the zero value is given no Secrets.
type account struct {
	proven bool
	name   string
}

func (v view) account() account {
	if !v.s.AnyCredentialed() || !v.mayHaveSecrets() {
		return account{}
	}
	return account{proven: true, name: v.p.ServiceAccount}
}

func (v view) alike() alike {
	return alike{
		proxyType: v.p.Type, interception: v.p.Interception, ipv4: v.p.IPv4, ipv6: v.p.IPv6, envoy: v.p.EnvoyVersion,
		place: v.place(), zoned: v.p.SelfDiscovery, account: v.account(), patches: v.patches.ClustersKey(),
	}
}

// placedKey is where it is kept whether any service's endpoints are chosen by the caller's place.
type placedKey struct{}

func (v view) place() string {
	if !v.scope.Memo(placedKey{}, func() any { return v.placed() }).(bool) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%q", v.p.Locality)
	for _, name := range slices.Sorted(maps.Keys(v.p.Labels)) {
		fmt.Fprintf(&b, " %q=%q", name, v.p.Labels[name])
	}
	return b.String()
}

func (v view) placed() bool {
	return slices.ContainsFunc(outboundClusters(v.s, v.p), func(c outbound) bool { return c.near != "" })
}

// serviceClusters are the clusters of the services that the proxy sees, made once for all proxies alike.
func (v view) serviceClusters() ([]*xds.Resource, error) {
	return v.snapshotLists().get(v.alike(), func() ([]*xds.Resource, error) {
		clusters := outboundClusters(v.s, v.p)
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

// leastListed is how many names make a list of assignments worth being kept.
const leastListed = 64

// assignmentsKey is a list of names that many proxies have in common, by where it is in memory, and who they are.
type assignmentsKey struct {
	first *string
	n     int
	alike alike
}

// serviceAssignments are the load assignments of the named clusters. Proxies that hold the same clusters give one and the
// same list of names, for all of which the answer is made once.
func (v view) serviceAssignments(names []string) ([]*xds.Resource, error) {
	if len(names) < leastListed {
		return v.makeAssignments(names)
	}
	key := assignmentsKey{first: unsafe.SliceData(names), n: len(names), alike: v.alike()}
	return v.snapshotLists().get(key, func() ([]*xds.Resource, error) { return v.makeAssignments(names) })
}

func (v view) makeAssignments(names []string) ([]*xds.Resource, error) {
	found := assignments(v.s, v.p, names)
	out := make([]*xds.Resource, 0, len(found))
	for _, c := range found {
		r, err := c.endpointsResource(v.s)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}
