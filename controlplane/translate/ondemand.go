package translate

import (
	"maps"
	"regexp"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// DefaultOnDemandTimeout bounds the wait for what is asked for as it is needed. It is only reached while there is no control
// plane, or, for a cluster, while another one's names are being resolved: until then Envoy asks for no cluster.
const DefaultOnDemandTimeout = 10 * time.Second

// TakesOnDemand says whether the proxy asks for virtual hosts and clusters of services as it needs them, if it is told to:
// sidecars whose Envoy is known to, over the protocol that can. Older ones (1.38.3) answer a request that has a body and waited
// for its virtual host with 404, and ask without end for one that has no route for a request.
func (p *Proxy) TakesOnDemand() bool {
	return p.Type == Sidecar && !p.Proxyless && p.HostsApart && p.atLeast(1, 40)
}

// HeldClusters are the clusters of a proxy that asks for more as it needs them: its own, and those that are named.
func HeldClusters(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	own := map[string]bool{}
	for _, c := range p.capture().ownClusters(s, p) {
		own[c.Name] = true
	}
	out, err := v.namedOwn(own)
	if err != nil {
		return nil, err
	}
	rest, err := AskedClusters(s, p, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return own[n] }))
	return append(out, rest...), err
}

// AskedClusters are the named clusters. Of a service that is not there, or no longer, there is a cluster without
// endpoints: to Envoy, a cluster that was refused once is one to wait for in vain with each request.
func AskedClusters(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	out, err := NamedClusters(s, p, names)
	if err != nil {
		return nil, err
	}
	found := make(map[string]bool, len(out))
	for _, r := range out {
		found[r.Name] = true
	}
	for _, name := range names {
		if _, _, _, ok := parseOutbound(name); !ok || found[name] {
			continue
		}
		found[name] = true
		empty := blackHole(s)
		empty.Name = name
		empty.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		r, err := xds.NewResource(name, empty)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// HasCluster says whether the mesh has a cluster of that name for the proxy.
func HasCluster(s *snapshot.Snapshot, p *Proxy, name string) bool {
	_, ok := findOutbound(s, p, name)
	return ok
}

var clusterNames = regexp.MustCompile(`outbound\|[0-9]+\|[-A-Za-z0-9._*]*\|[-A-Za-z0-9.*]+`)

// NeededClusters names the clusters that a proxy has to hold although no route is to ask for them: those that filters,
// logs and traces of its listeners call, and those that get copies of requests.
func NeededClusters(s *snapshot.Snapshot, p *Proxy) ([]string, error) {
	v := newView(s, p)
	needed := map[string]bool{}
	listeners, err := Listeners(s, p)
	if err != nil {
		return nil, err
	}
	for _, l := range listeners {
		for _, name := range clusterNames.FindAllString(string(l.Body.GetValue()), -1) {
			// Connections ask for what they lead to; only requests to HTTP ports are made by filters.
			if c, ok := findOutbound(s, p, name); ok {
				if port, _ := c.svc.Port(c.port); port.Protocol.IsHTTP() || v.collects(name) {
					needed[name] = true
				}
			}
		}
	}
	for _, vs := range v.scope.VirtualServices {
		for _, rule := range vs.Spec.GetHttp() {
			if d := rule.GetMirror(); d != nil {
				v.needAll(needed, d, vs.Namespace)
			}
			for _, m := range rule.GetMirrors() {
				v.needAll(needed, m.GetDestination(), vs.Namespace)
			}
		}
	}
	return slices.Sorted(maps.Keys(needed)), nil
}

// collects says whether logs or traces may go to a cluster, whatever its port is declared to speak.
func (v view) collects(cluster string) bool {
	return slices.ContainsFunc(v.s.Mesh.GetExtensionProviders(), func(p *snapshot.ExtensionProvider) bool {
		name, _, ok := v.providerCluster(snapshot.CollectorService(p))
		return ok && name == cluster
	})
}

// needAll needs all ports of what is mirrored to, because which it is may depend on the port that was called.
func (v view) needAll(needed map[string]bool, d *networking.Destination, namespace string) {
	if svc := v.scope.Resolve(d.GetHost(), namespace); svc != nil {
		for _, port := range svc.Ports {
			needed[OutboundCluster(svc.Hostname, d.GetSubset(), port.Number)] = true
		}
	}
}

// ClustersOf are the clusters of services that virtual hosts lead to.
func ClustersOf(hosts []*xds.Resource) []string {
	named := map[string]bool{}
	for _, h := range hosts {
		for _, name := range clusterNames.FindAllString(string(h.Body.GetValue()), -1) {
			named[name] = true
		}
	}
	return slices.Sorted(maps.Keys(named))
}

// onDemandFilter has requests wait for a virtual host, and then for a cluster, that the proxy does not hold yet.
func (v view) onDemandFilter() *hcmv3.HttpFilter {
	return httpFilter("envoy.filters.http.on_demand", &ondemandv3.OnDemand{
		Odcds: &ondemandv3.OnDemandCds{Source: ads(), Timeout: duration(v.p.OnDemandTimeout)},
	})
}

func (v view) tcpOnDemand() *tcpv3.TcpProxy_OnDemand {
	return &tcpv3.TcpProxy_OnDemand{OdcdsConfig: ads(), Timeout: duration(v.p.OnDemandTimeout)}
}
