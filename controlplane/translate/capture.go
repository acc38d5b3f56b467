package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// capture is how traffic gets to a proxy and from it to its workload: all that differs between a sidecar that is called
// by address, one whose connections the kernel redirects, and a gateway. What is done with the traffic (chains, routes,
// clusters of services) is the same for all, and elsewhere.
type capture interface {
	// listeners of the proxy, in a stable order.
	listeners(v view) []*listenerv3.Listener
	// routeNames are the route configurations that the listeners refer to.
	routeNames(v view) []string
	// route is the route configuration of a name, or nil when there is none.
	route(v view, name string) (*xds.Resource, error)
	// hostPlan are the virtual hosts of a sidecar's route configuration that has those of many services; nil of others.
	hostPlan(v view, route string) *hostPlan
	// ownClusters are those beside the services': the workload's ports, and what is outside the mesh.
	ownClusters(s *snapshot.Snapshot, p *Proxy) []*clusterv3.Cluster
}

// captures are the ways of a sidecar.
var captures map[Interception]capture

func init() {
	captures = map[Interception]capture{None: none{}, Redirect: redirect{}}
}

func (p *Proxy) capture() capture {
	if p.Type == Router {
		return gateway{}
	}
	return captures[p.Interception]
}

// view is one proxy's view of one snapshot.
type view struct {
	s     *snapshot.Snapshot
	p     *Proxy
	scope *snapshot.Scope
	// patches are those of the EnvoyFilters for the proxy.
	patches *envoyfilter.Set
	told    *telling
}

func newView(s *snapshot.Snapshot, p *Proxy) view {
	return view{s: s, p: p, scope: p.scope(s), patches: p.patches(s), told: &telling{}}
}
