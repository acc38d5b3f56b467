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

// grpcServerPrefix is the prefix of the listener name to which a gRPC server subscribes. The server's listen address
// follows the prefix. Istio's agents and pilotfish-agent set the prefix in the gRPC bootstrap.
const grpcServerPrefix = "xds.istio.io/grpc/lds/inbound/"

// Proxyless returns the resources of type typeURL whose names are in names, for an application that uses xDS directly
// through a gRPC library. The client subscribes to a listener for each "service:port" that it calls and for each
// address that it serves, then to the resources that these reference. For unknown names, Proxyless returns empty
// resources, because gRPC libraries wait up to 15 seconds for a missing resource.
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

func (v proxyView) grpcListener(name string) (*xds.Resource, error) {
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

// grpcServer returns the listener of a gRPC server. The listener specifies whether the server uses mutual TLS, and its
// RBAC filters. A gRPC server cannot accept TLS and plaintext on one port. In permissive mode, the server therefore
// uses the protocol with which proxyless clients connect to it.
func (v proxyView) grpcServer(name, at string) (*xds.Resource, error) {
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		return nil, nil // not a valid listen address
	}
	manager := &hcmv3.HttpConnectionManager{
		HttpFilters: append(v.grpcRBAC(), grpcRouter()),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "inbound",
			VirtualHosts: []*routev3.VirtualHost{{Name: "inbound", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match: matchAllPaths(), Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
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

func (v proxyView) grpcServesTLS(port uint32) bool {
	switch v.s.MTLSMode(v.p.Namespace, v.p.Labels, port) {
	case snapshot.Strict:
		return true
	case snapshot.Disable:
		return false
	}
	return registry.HasSidecar(v.p.Labels, v.p.ServiceAccount)
}

// grpcRoutesKey contains all values on which the routes of a target depend.
type grpcRoutesKey struct{ routesKey }

// grpcRouteConfiguration returns the route configuration of a target. It has the same name as the target's listener.
// Its routes match any authority, because the client has subscribed to exactly this target.
func (v proxyView) grpcRouteConfiguration(name string) (*xds.Resource, error) {
	key := grpcRoutesKey{routesKey{name: name, labels: v.sourceLabels()}}
	return v.scope.Cache().Get(key, func() (*xds.Resource, error) {
		config := &routev3.RouteConfiguration{Name: name}
		if routes := grpcRoutes(v.grpcTargetRoutes(name), name); len(routes) > 0 {
			config.VirtualHosts = []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: routes}}
		}
		return xds.NewResource(name, sanitizeRoutes(config))
	})
}

// grpcTargetRoutes returns the routes for "service:port". The service may also be a host that exists only in a
// VirtualService. It returns nil for unknown targets.
func (v proxyView) grpcTargetRoutes(target string) []*routev3.Route {
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
