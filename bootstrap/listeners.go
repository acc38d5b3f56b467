package bootstrap

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

func staticListeners(c Config, a *anys) []*listenerv3.Listener {
	return []*listenerv3.Listener{
		forwarder(c, a, c.PrometheusPort, "stats", "/stats/prometheus", statsCluster),
		forwarder(c, a, c.ReadinessPort, "agent", "/healthz/ready", agentCluster),
	}
}

// forwarder sends one path of a port to a cluster. It has no name, as in Istio's bootstrap, so that its statistics are
// those of its address; and it goes on answering when Envoy sheds load.
func forwarder(c Config, a *anys, port uint32, statPrefix, path, cluster string) *listenerv3.Listener {
	addresses := c.openAddresses()
	l := &listenerv3.Listener{
		Address:               tcp(addresses[0], port),
		BypassOverloadManager: true,
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{
				Name: "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: a.of(&hcmv3.HttpConnectionManager{
					CodecType:  hcmv3.HttpConnectionManager_AUTO,
					StatPrefix: statPrefix,
					RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{
						RouteConfig: onePath(path, cluster),
					},
					HttpFilters: []*hcmv3.HttpFilter{{
						Name:       "envoy.filters.http.router",
						ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a.of(&routerv3.Router{})},
					}},
				})},
			}},
		}},
	}
	for _, address := range addresses[1:] {
		l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: tcp(address, port)})
	}
	return l
}

func onePath(path, cluster string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    "backend",
			Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: path}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
				}},
			}},
		}},
	}
}
