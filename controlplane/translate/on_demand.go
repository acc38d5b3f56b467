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

// DefaultOnDemandTimeout limits how long a request waits for an on-demand resource. It expires in two cases only: no
// control plane responds, or Envoy is still resolving the host names of another cluster and therefore requests no
// cluster.
const DefaultOnDemandTimeout = 10 * time.Second

// SupportsOnDemand reports whether the proxy can request virtual hosts and clusters on demand. This requires a sidecar
// with delta xDS and Envoy 1.40 or later. Older versions have two bugs (seen in 1.38.3): they respond 404 to a request
// with a body that waited for its virtual host, and they repeat a request without a matching route endlessly.
func (p *Proxy) SupportsOnDemand() bool {
	return p.Type == Sidecar && !p.Proxyless && p.UseVHDS && p.isEnvoyAtLeast(1, 40)
}

// HeldClusters returns the clusters for a proxy that requests clusters on demand. These are the clusters that do not
// belong to a service, and the clusters whose names are in names.
func HeldClusters(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	own := map[string]bool{}
	for _, c := range p.interceptionMode().nonServiceClusters(s, p) {
		own[c.Name] = true
	}
	out, err := v.namedNonServiceClusters(own)
	if err != nil {
		return nil, err
	}
	rest, err := RequestedClusters(s, p, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return own[n] }))
	return append(out, rest...), err
}

// RequestedClusters returns the clusters whose names are in names. For a service that does not exist, it returns a
// cluster without endpoints. If the control plane reported the cluster as missing, each request to it would wait again.
func RequestedClusters(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
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

// HasCluster reports whether a cluster that belongs to a visible service is called name.
func HasCluster(s *snapshot.Snapshot, p *Proxy, name string) bool {
	_, ok := findServiceCluster(s, p, name)
	return ok
}

var clusterNames = regexp.MustCompile(`outbound\|[0-9]+\|[-A-Za-z0-9._*]*\|[-A-Za-z0-9.*]+`)

// RequiredClusters returns the names of clusters that a proxy needs although it does not request them on demand.
// Filters, access loggers and tracers of its listeners use these clusters, or requests are mirrored to them.
func RequiredClusters(s *snapshot.Snapshot, p *Proxy) ([]string, error) {
	v := newView(s, p)
	needed := map[string]bool{}
	listeners, err := Listeners(s, p)
	if err != nil {
		return nil, err
	}
	for _, l := range listeners {
		for _, name := range clusterNames.FindAllString(string(l.Body.GetValue()), -1) {
			// TCP proxies request their clusters on demand. Filters send requests only to HTTP ports, so only clusters
			// of HTTP ports are required.
			if c, ok := findServiceCluster(s, p, name); ok {
				if port, _ := c.svc.Port(c.port); port.Protocol.IsHTTP() || v.isCollector(name) {
					needed[name] = true
				}
			}
		}
	}
	for _, vs := range v.scope.VirtualServices {
		for _, rule := range vs.Spec.GetHttp() {
			if d := rule.GetMirror(); d != nil {
				v.addMirrorClusters(needed, d, vs.Namespace)
			}
			for _, m := range rule.GetMirrors() {
				v.addMirrorClusters(needed, m.GetDestination(), vs.Namespace)
			}
		}
	}
	return slices.Sorted(maps.Keys(needed)), nil
}

// isCollector reports whether a cluster may be a collector of access logs or traces. Its port may have any protocol.
func (v proxyView) isCollector(cluster string) bool {
	return slices.ContainsFunc(v.s.Mesh.GetExtensionProviders(), func(p *snapshot.ExtensionProvider) bool {
		name, _, ok := v.providerCluster(snapshot.CollectorService(p))
		return ok && name == cluster
	}) || v.isSecretServer(cluster)
}

// isSecretServer reports whether a cluster belongs to the SDS server of the mesh configuration.
func (v proxyView) isSecretServer(cluster string) bool {
	name, _, ok := v.providerCluster(snapshot.SDSService(v.s.Mesh))
	return ok && name == cluster
}

// addMirrorClusters adds the clusters of a mirror destination for all its ports, because the port may depend on the
// port of the request.
func (v proxyView) addMirrorClusters(needed map[string]bool, d *networking.Destination, namespace string) {
	if svc := v.scope.Resolve(d.GetHost(), namespace); svc != nil {
		for _, port := range svc.Ports {
			needed[OutboundCluster(svc.Hostname, d.GetSubset(), port.Number)] = true
		}
	}
}

// ReferencedClusters returns the service clusters to which virtual hosts refer.
func ReferencedClusters(hosts []*xds.Resource) []string {
	named := map[string]bool{}
	for _, h := range hosts {
		for _, name := range clusterNames.FindAllString(string(h.Body.GetValue()), -1) {
			named[name] = true
		}
	}
	return slices.Sorted(maps.Keys(named))
}

// onDemandFilter makes requests wait until Envoy has received the virtual host, and then the cluster, that they need.
func (v proxyView) onDemandFilter() *hcmv3.HttpFilter {
	return httpFilter("envoy.filters.http.on_demand", &ondemandv3.OnDemand{
		Odcds: &ondemandv3.OnDemandCds{Source: ads(), Timeout: duration(v.p.OnDemandTimeout)},
	})
}

func (v proxyView) tcpOnDemand() *tcpv3.TcpProxy_OnDemand {
	return &tcpv3.TcpProxy_OnDemand{OdcdsConfig: ads(), Timeout: duration(v.p.OnDemandTimeout)}
}
