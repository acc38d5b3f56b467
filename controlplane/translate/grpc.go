package translate

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// grpcServerPrefix begins the name under which a gRPC server asks for its listener; the address that it listens on
// follows. Istio's agents, and ours, tell it so in the bootstrap.
const grpcServerPrefix = "xds.istio.io/grpc/lds/inbound/"

// Proxyless are the named resources of one type for an application that speaks xDS itself, as gRPC's libraries do. It
// asks for all by name: a listener for each "service:port" that it calls and for each address that it serves at, and
// then for what those refer to. A name that means nothing in the mesh gets a resource that leads nowhere, since gRPC
// waits long for one that does not come.
func Proxyless(s *snapshot.Snapshot, p *Proxy, typeURL string, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	build := map[string]func(string) (*xds.Resource, error){
		xds.ListenerType: v.grpcListener, xds.RouteType: v.grpcRouteConfiguration,
		xds.ClusterType: v.grpcCluster, xds.EndpointType: v.grpcAssignment,
	}[typeURL]
	if build == nil {
		return nil, nil
	}
	out := make([]*xds.Resource, 0, len(names))
	for _, name := range names {
		r, err := build(name)
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}

func (v view) grpcListener(name string) (*xds.Resource, error) {
	if at, ok := strings.CutPrefix(name, grpcServerPrefix); ok {
		return v.grpcServer(name, at)
	}
	manager := &hcmv3.HttpConnectionManager{
		HttpFilters:    []*hcmv3.HttpFilter{httpFilter(faultFilterName, &faultv3.HTTPFault{}), grpcRouter()},
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: name}},
	}
	return xds.NewResource(name, &listenerv3.Listener{
		Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: anyOf(manager)},
	})
}

func grpcRouter() *hcmv3.HttpFilter {
	return httpFilter("envoy.filters.http.router", &routerv3.Router{})
}

// grpcServer is the listener of a server: whether it takes mutual TLS, and whom it lets in. A server cannot tell TLS
// from plaintext on one port; where the mesh's policy lets it have both, it takes what its callers come with.
func (v view) grpcServer(name, at string) (*xds.Resource, error) {
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		return nil, nil // not an address that anyone can listen on
	}
	manager := &hcmv3.HttpConnectionManager{
		HttpFilters: append(v.grpcRBAC(), grpcRouter()),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "inbound",
			VirtualHosts: []*routev3.VirtualHost{{Name: "inbound", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match: everyPath(), Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
			}}}},
		}},
	}
	chain := &listenerv3.FilterChain{
		Name: "inbound", Filters: []*listenerv3.Filter{networkFilter("envoy.filters.network.http_connection_manager", manager)},
	}
	if v.grpcServesTLS(uint32(addr.Port())) {
		chain.TransportSocket = grpcServerTLS()
	}
	return xds.NewResource(name, &listenerv3.Listener{
		Name: name, Address: socketAddress(addr), TrafficDirection: corev3.TrafficDirection_INBOUND,
		FilterChains: []*listenerv3.FilterChain{chain},
	})
}

func (v view) grpcServesTLS(port uint32) bool {
	switch v.s.MTLSMode(v.p.Namespace, v.p.Labels, port) {
	case snapshot.Strict:
		return true
	case snapshot.Disable:
		return false
	}
	return registry.HasSidecar(v.p.Labels, v.p.ServiceAccount)
}

// grpcRoutesKey is all that the routes of a target depend on.
type grpcRoutesKey struct{ routesKey }

// grpcRouteConfiguration are the routes of a target, which goes by the name of its listener. They are for any authority:
// that the target is meant was said by asking for it.
func (v view) grpcRouteConfiguration(name string) (*xds.Resource, error) {
	key := grpcRoutesKey{routesKey{name: name, labels: v.askedLabels()}}
	return v.scope.Cache().Get(key, func() (*xds.Resource, error) {
		config := &routev3.RouteConfiguration{Name: name}
		if routes := grpcRoutes(v.grpcTargetRoutes(name), name); len(routes) > 0 {
			config.VirtualHosts = []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: routes}}
		}
		return xds.NewResource(name, acceptable(config))
	})
}

// grpcTargetRoutes are the routes for "service:port": those of a service, or of a host that only a rule knows. There are
// none for what the mesh does not know.
func (v view) grpcTargetRoutes(target string) []*routev3.Route {
	host, number, err := net.SplitHostPort(target)
	if err != nil {
		return nil
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return nil
	}
	r := v.routing(snapshot.MeshGateway, uint32(port))
	if svc := v.scope.Resolve(host, v.p.Namespace); svc != nil {
		if p, ok := svc.Port(uint32(port)); !ok || p.Protocol == registry.UDP {
			return nil
		}
		return r.serviceRoutes(svc)
	}
	if vs := v.scope.VirtualService(v.scope.Hostname(host, v.p.Namespace)); vs != nil {
		return r.routes(vs)
	}
	return nil
}
