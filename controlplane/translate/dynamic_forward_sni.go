package translate

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	snidfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// tcpFiltersForHosts returns the filters of TLS connections whose SNI is one of names. If Envoy resolves the service by
// name, it connects to the host in the SNI, at the service's port. In this case, all names must match the service's
// host; otherwise Envoy closes the connections.
func (v proxyView) tcpFiltersForHosts(t traffic, statPrefix string, names []string, to []clusterWeight) []*listenerv3.Filter {
	to = slices.Clone(to)
	port := uint32(0)
	for i, s := range to {
		svc, number, ok := v.findSNIForwardTarget(s.cluster)
		switch {
		case !ok:
		case !coversAll(svc.Hostname, names) || port != 0 && port != number:
			to[i].cluster = BlackHoleCluster
		default:
			port = number
		}
	}
	out := v.tcpFilters(t, statPrefix, to)
	if port == 0 {
		return out
	}
	resolve := networkFilter("envoy.filters.network.sni_dynamic_forward_proxy", &snidfpv3.FilterConfig{
		DnsCacheConfig: dnsCache(v.p.dnsFamily(registry.Passthrough)),
		PortSpecifier:  &snidfpv3.FilterConfig_PortValue{PortValue: port},
	})
	return slices.Insert(out, len(out)-1, resolve)
}

// findSNIForwardTarget returns the service and port of a cluster to which Envoy forwards connections by the host in the
// SNI. ok is false for other clusters.
func (v proxyView) findSNIForwardTarget(cluster string) (svc *registry.Service, port uint32, ok bool) {
	host, _, number, ok := parseOutbound(cluster)
	if !ok {
		return nil, 0, false
	}
	svc = v.scope.Service(host)
	if svc == nil || svc.Resolution != registry.Passthrough || v.p.isCaptured() && !svc.ByName {
		return nil, 0, false
	}
	declared, ok := svc.Port(number)
	if !ok || declared.Protocol != registry.TLS && declared.Protocol != registry.HTTPS {
		return nil, 0, false
	}
	return svc, declared.TargetPort, true
}

// coversAll reports whether names is not empty and host matches all of them. host may be a pattern.
func coversAll(host string, names []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !snapshot.MatchHost(host, strings.ToLower(name)) })
}
