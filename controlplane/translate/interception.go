package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// interceptionMode determines how traffic reaches a proxy, and how the proxy reaches its workload. Its implementations
// contain all differences between a sidecar to which clients connect by address, a sidecar that receives redirected
// connections, and a gateway.
type interceptionMode interface {
	// listeners returns the listeners of the proxy in a stable order.
	listeners(v proxyView) []*listenerv3.Listener
	// routeNames returns the names of the route configurations to which the listeners refer.
	routeNames(v proxyView) []string
	// routeConfiguration returns a route configuration by name, or nil if it does not exist.
	routeConfiguration(v proxyView, name string) (*xds.Resource, error)
	// hostPlan returns the virtual hosts of a sidecar's route configuration for many services. It returns nil for other
	// route configurations.
	hostPlan(v proxyView, route string) *hostPlan
	// nonServiceClusters returns the clusters that do not belong to a service: the clusters of the workload's ports and
	// of destinations outside the mesh.
	nonServiceClusters(s *snapshot.Snapshot, p *Proxy) []*clusterv3.Cluster
}

// interceptionModes maps the interception setting of a sidecar to its mode.
var interceptionModes map[Interception]interceptionMode

func init() {
	interceptionModes = map[Interception]interceptionMode{None: noneMode{}, Redirect: redirectMode{}}
}

func (p *Proxy) interceptionMode() interceptionMode {
	if p.Type == Router {
		return gatewayMode{}
	}
	return interceptionModes[p.Interception]
}

// proxyView is one proxy's view of one snapshot.
type proxyView struct {
	s     *snapshot.Snapshot
	p     *Proxy
	scope *snapshot.Scope
	// patches contains the EnvoyFilter patches that apply to the proxy.
	patches *envoyfilter.Set
	cache   *viewCache
}

func newView(s *snapshot.Snapshot, p *Proxy) proxyView {
	return proxyView{s: s, p: p, scope: p.scope(s), patches: p.patches(s), cache: &viewCache{}}
}
