package envoyfilter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// This file contains checks that Envoy performs in addition to its validation rules. It contains only checks that a
// patch is likely to fail.

// terminalFilters are the network filters that must be the last of a chain.
var terminalFilters = map[string]bool{
	"http_connection_manager.v3.HttpConnectionManager": true, "tcp_proxy.v3.TcpProxy": true, "redis_proxy.v3.RedisProxy": true,
	"thrift_proxy.v3.ThriftProxy": true, "dubbo_proxy.v3.DubboProxy": true, "echo.v3.Echo": true,
	"direct_response.v3.Config": true, "generic_proxy.v3.GenericProxy": true,
}

func isTerminal(f *listenerv3.Filter) bool {
	name, ok := strings.CutPrefix(f.GetTypedConfig().GetTypeUrl(), "type.googleapis.com/envoy.extensions.filters.network.")
	return ok && terminalFilters[name]
}

// mayTerminate reports whether a filter may be the last filter of a chain: it is a terminal filter, or its type is
// unknown or may be terminal.
func mayTerminate(f *listenerv3.Filter) bool {
	return isTerminal(f) || f.GetConfigDiscovery() != nil || !strings.Contains(f.GetTypedConfig().GetTypeUrl(), "envoy.extensions.filters.network.") ||
		strings.HasSuffix(f.GetTypedConfig().GetTypeUrl(), "wasm.v3.Wasm")
}

const routerType = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"

func isRouter(f *hcmv3.HttpFilter) bool { return f.GetTypedConfig().GetTypeUrl() == routerType }

// mayBeRouter reports whether a filter is the router, or may become the router when Envoy receives its configuration.
func mayBeRouter(f *hcmv3.HttpFilter) bool {
	return isRouter(f) || slices.Contains(f.GetConfigDiscovery().GetTypeUrls(), routerType)
}

func checkListener(l *listenerv3.Listener) error {
	if len(filterChains(l)) == 0 && l.GetAddress().GetSocketAddress().GetProtocol() != corev3.SocketAddress_UDP {
		return errors.New("the listener has no filter chain")
	}
	matches := map[string]string{}
	for _, chain := range l.GetFilterChains() {
		m := chain.GetFilterChainMatch()
		match := ""
		if m != nil {
			b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			if err != nil {
				return err
			}
			match = string(b)
		}
		if other, twice := matches[match]; twice {
			return fmt.Errorf("the filter chains %q and %q have the same match", other, chain.GetName())
		}
		matches[match] = chain.GetName()
	}
	for _, f := range l.GetListenerFilters() {
		if f.GetConfigType() == nil {
			return fmt.Errorf("the listener filter %q has no configuration", f.GetName())
		}
	}
	for _, chain := range filterChains(l) {
		if err := checkFilterChain(chain); err != nil {
			return fmt.Errorf("filter chain %q: %w", chain.GetName(), err)
		}
	}
	return nil
}

func checkFilterChain(chain *listenerv3.FilterChain) error {
	filters := chain.GetFilters()
	for i, f := range filters {
		switch last := i == len(filters)-1; {
		case f.GetConfigType() == nil:
			return fmt.Errorf("the filter %q has no configuration", f.GetName())
		case !last && isTerminal(f):
			return fmt.Errorf("the filter %q is terminal, but it is not the last filter", f.GetName())
		case last && !mayTerminate(f):
			return fmt.Errorf("the last filter %q is not terminal", f.GetName())
		}
		m, err := connectionManager(f)
		if err != nil {
			return err
		}
		if m != nil {
			if err := checkConnectionManager(m); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkConnectionManager(m *hcmv3.HttpConnectionManager) error {
	filters := m.GetHttpFilters()
	if len(filters) == 0 {
		return errors.New("the connection manager has no HTTP filter: the last HTTP filter must be the router")
	}
	for i, f := range filters {
		switch last := i == len(filters)-1; {
		case f.GetConfigType() == nil:
			return fmt.Errorf("the HTTP filter %q has no configuration", f.GetName())
		case last && !mayBeRouter(f):
			return fmt.Errorf("the last HTTP filter %q is not the router", f.GetName())
		case !last && isRouter(f):
			return errors.New("the router is not the last HTTP filter")
		}
	}
	return nil
}

func newRouteCheck(taken map[string]bool) func(*routev3.RouteConfiguration) error {
	return func(rc *routev3.RouteConfiguration) error {
		names, domains := map[string]bool{}, map[string]bool{}
		for _, host := range rc.GetVirtualHosts() {
			if names[host.GetName()] {
				return fmt.Errorf("two virtual hosts have the name %q", host.GetName())
			}
			names[host.GetName()] = true
			for _, domain := range host.GetDomains() {
				if domain = strings.ToLower(domain); domains[domain] || taken[domain] {
					return fmt.Errorf("two virtual hosts have the domain %q", domain)
				}
				domains[domain] = true
			}
		}
		return nil
	}
}

func checkCluster(c *clusterv3.Cluster) error {
	if c.GetType() == clusterv3.Cluster_EDS && c.GetClusterType() == nil && c.GetEdsClusterConfig() == nil {
		return errors.New("the cluster has type EDS, but no edsClusterConfig")
	}
	if c.GetType() != clusterv3.Cluster_EDS && c.GetEdsClusterConfig() != nil {
		return errors.New("the cluster has an edsClusterConfig, but its type is not EDS")
	}
	if (c.GetLbPolicy() == clusterv3.Cluster_CLUSTER_PROVIDED) != (c.GetType() == clusterv3.Cluster_ORIGINAL_DST) && c.GetClusterType() == nil {
		return errors.New("the cluster must have both type ORIGINAL_DST and lbPolicy CLUSTER_PROVIDED, or neither")
	}
	return nil
}
