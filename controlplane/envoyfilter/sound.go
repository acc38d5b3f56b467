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

// What Envoy demands beyond the rules that its types have, as far as patches are likely to break it.

// terminals are the network filters that end a chain.
var terminals = map[string]bool{
	"http_connection_manager.v3.HttpConnectionManager": true, "tcp_proxy.v3.TcpProxy": true, "redis_proxy.v3.RedisProxy": true,
	"thrift_proxy.v3.ThriftProxy": true, "dubbo_proxy.v3.DubboProxy": true, "echo.v3.Echo": true,
	"direct_response.v3.Config": true, "generic_proxy.v3.GenericProxy": true,
}

func terminal(f *listenerv3.Filter) bool {
	name, ok := strings.CutPrefix(f.GetTypedConfig().GetTypeUrl(), "type.googleapis.com/envoy.extensions.filters.network.")
	return ok && terminals[name]
}

// ends says whether a filter of that sort may be the last: it ends the chain, or nobody can tell from here.
func ends(f *listenerv3.Filter) bool {
	return terminal(f) || f.GetConfigDiscovery() != nil || !strings.Contains(f.GetTypedConfig().GetTypeUrl(), "envoy.extensions.filters.network.") ||
		strings.HasSuffix(f.GetTypedConfig().GetTypeUrl(), "wasm.v3.Wasm")
}

const routerType = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"

func isRouter(f *hcmv3.HttpFilter) bool { return f.GetTypedConfig().GetTypeUrl() == routerType }

// mayRoute says whether it is the router, or may turn out to be when its configuration comes.
func mayRoute(f *hcmv3.HttpFilter) bool {
	return isRouter(f) || slices.Contains(f.GetConfigDiscovery().GetTypeUrls(), routerType)
}

func soundListener(l *listenerv3.Listener) error {
	if len(chains(l)) == 0 && l.GetAddress().GetSocketAddress().GetProtocol() != corev3.SocketAddress_UDP {
		return errors.New("no filter chain is left")
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
			return fmt.Errorf("the filter chains %q and %q match the same", other, chain.GetName())
		}
		matches[match] = chain.GetName()
	}
	for _, f := range l.GetListenerFilters() {
		if f.GetConfigType() == nil {
			return fmt.Errorf("the listener filter %q has no configuration", f.GetName())
		}
	}
	for _, chain := range chains(l) {
		if err := soundChain(chain); err != nil {
			return fmt.Errorf("filter chain %q: %w", chain.GetName(), err)
		}
	}
	return nil
}

func soundChain(chain *listenerv3.FilterChain) error {
	filters := chain.GetFilters()
	for i, f := range filters {
		switch last := i == len(filters)-1; {
		case f.GetConfigType() == nil:
			return fmt.Errorf("the filter %q has no configuration", f.GetName())
		case !last && terminal(f):
			return fmt.Errorf("the filter %q ends the chain, and others come behind it", f.GetName())
		case last && !ends(f):
			return fmt.Errorf("the filter %q is the last, and ends nothing", f.GetName())
		}
		m, err := manager(f)
		if err != nil {
			return err
		}
		if m != nil {
			if err := soundManager(m); err != nil {
				return err
			}
		}
	}
	return nil
}

func soundManager(m *hcmv3.HttpConnectionManager) error {
	filters := m.GetHttpFilters()
	if len(filters) == 0 {
		return errors.New("there is no HTTP filter: the router has to be the last")
	}
	for i, f := range filters {
		switch last := i == len(filters)-1; {
		case f.GetConfigType() == nil:
			return fmt.Errorf("the HTTP filter %q has no configuration", f.GetName())
		case last && !mayRoute(f):
			return fmt.Errorf("the HTTP filter %q is the last: the router has to be", f.GetName())
		case !last && isRouter(f):
			return errors.New("the router is not the last HTTP filter")
		}
	}
	return nil
}

func soundRoutes(taken map[string]bool) func(*routev3.RouteConfiguration) error {
	return func(rc *routev3.RouteConfiguration) error {
		names, domains := map[string]bool{}, map[string]bool{}
		for _, host := range rc.GetVirtualHosts() {
			if names[host.GetName()] {
				return fmt.Errorf("two virtual hosts are called %q", host.GetName())
			}
			names[host.GetName()] = true
			for _, domain := range host.GetDomains() {
				if domain = strings.ToLower(domain); domains[domain] || taken[domain] {
					return fmt.Errorf("the domain %q is there twice", domain)
				}
				domains[domain] = true
			}
		}
		return nil
	}
}

func soundCluster(c *clusterv3.Cluster) error {
	if c.GetType() == clusterv3.Cluster_EDS && c.GetClusterType() == nil && c.GetEdsClusterConfig() == nil {
		return errors.New("its endpoints come by EDS, and it has no edsClusterConfig")
	}
	if c.GetType() != clusterv3.Cluster_EDS && c.GetEdsClusterConfig() != nil {
		return errors.New("it has an edsClusterConfig, and another type than EDS")
	}
	if (c.GetLbPolicy() == clusterv3.Cluster_CLUSTER_PROVIDED) != (c.GetType() == clusterv3.Cluster_ORIGINAL_DST) && c.GetClusterType() == nil {
		return errors.New("type ORIGINAL_DST and lbPolicy CLUSTER_PROVIDED go together")
	}
	return nil
}
