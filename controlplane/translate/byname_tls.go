package translate

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	snidfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// namedFilters are all filters of connections whose handshake names one of some hosts. Where they go to a service that is
// looked up by name, it is the host that the handshake names, if the service has it, at the service's port.
func (v view) namedFilters(t traffic, statPrefix string, names []string, to []share) []*listenerv3.Filter {
	to = slices.Clone(to)
	port := uint32(0)
	for i, s := range to {
		svc, number, ok := v.namedInTLS(s.cluster)
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

// namedInTLS says whether a cluster is of a service whose host is looked up as the handshake names it, and at which port.
func (v view) namedInTLS(cluster string) (svc *registry.Service, port uint32, ok bool) {
	host, _, number, ok := parseOutbound(cluster)
	if !ok {
		return nil, 0, false
	}
	svc = v.scope.Service(host)
	if svc == nil || svc.Resolution != registry.Passthrough || v.p.captured() && !svc.ByName {
		return nil, 0, false
	}
	declared, ok := svc.Port(number)
	if !ok || declared.Protocol != registry.TLS && declared.Protocol != registry.HTTPS {
		return nil, 0, false
	}
	return svc, declared.TargetPort, true
}

// coversAll says whether there are names, and all are the host's.
func coversAll(host string, names []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !snapshot.MatchHost(host, strings.ToLower(name)) })
}
