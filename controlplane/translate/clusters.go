package translate

import (
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Clusters returns all clusters of the proxy. The clusters of visible services are first, sorted by name. The clusters
// of a service's subsets follow the cluster of the service. The clusters of the workload's ports and all other clusters
// are last.
func Clusters(s *snapshot.Snapshot, p *Proxy) ([]*xds.Resource, error) {
	v := newView(s, p)
	out, err := v.serviceClusters()
	if err != nil {
		return nil, err
	}
	for _, c := range v.patchNonServiceClusters(p.interceptionMode().nonServiceClusters(s, p)) {
		r, err := clusterResource(c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	added, err := v.addedClusters(func(name string) bool {
		return slices.ContainsFunc(out, func(r *xds.Resource) bool { return r.Name == name })
	})
	v.reportSkippedPatches(xds.ClusterType, matchAll, out)
	return append(out, added...), err
}

// NamedClusters returns the clusters whose names are in names, in the same order. It skips unknown names.
func NamedClusters(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	out, err := v.namedClusters(names)
	v.reportSkippedPatches(xds.ClusterType, matchNames(names), out)
	return out, err
}

func (v proxyView) namedClusters(names []string) ([]*xds.Resource, error) {
	s, p := v.s, v.p
	var out []*xds.Resource
	own := map[string]bool{}
	for _, name := range names {
		c, ok := findServiceCluster(s, p, name)
		if !ok {
			own[name] = true
			continue
		}
		patches := c.patched(p, v.patches)
		if patches.Removes() {
			continue
		}
		r, err := c.resource(s, patches)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	if v.patches == nil && !slices.ContainsFunc(names, func(name string) bool { return own[name] && !strings.HasPrefix(name, "outbound|") }) {
		return out, nil
	}
	rest, err := v.namedNonServiceClusters(own)
	return append(out, rest...), err
}

// namedNonServiceClusters returns those clusters in named that do not belong to a service. Their order is fixed.
func (v proxyView) namedNonServiceClusters(named map[string]bool) ([]*xds.Resource, error) {
	var out []*xds.Resource
	taken := map[string]bool{}
	for _, c := range v.patchNonServiceClusters(v.p.interceptionMode().nonServiceClusters(v.s, v.p)) {
		taken[c.Name] = true
		if !named[c.Name] {
			continue
		}
		r, err := clusterResource(c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	added, err := v.addedClusters(func(name string) bool { return !named[name] || taken[name] })
	return append(out, added...), err
}

// findServiceCluster returns the cluster that is called name and belongs to a visible service. It returns false if
// there is none.
func findServiceCluster(s *snapshot.Snapshot, p *Proxy, name string) (serviceCluster, bool) {
	host, subset, number, ok := parseOutbound(name)
	if !ok {
		return serviceCluster{}, false
	}
	scope := p.scope(s)
	svc := scope.Service(host)
	if svc == nil {
		return serviceCluster{}, false
	}
	port, found := svc.Port(number)
	rule := scope.DestinationRule(svc)
	if !found || port.Protocol == registry.UDP {
		return serviceCluster{}, false
	}
	if subset != "" && rule.Subset(subset) == nil && !(subset == instanceSubset && p.hasInstanceCluster(svc, port)) {
		return serviceCluster{}, false
	}
	return newServiceCluster(s, p, svc, number, rule).withSubset(subset, s, p), true
}

// serviceCluster is one cluster of a service's port. It is also the cache key of the resource, so it contains all
// values on which the cluster depends.
type serviceCluster struct {
	svc    *registry.Service
	port   uint32
	subset string
	rule   *snapshot.DestinationRule
	facts  *snapshot.Facts
	mesh   *meshconfig.MeshConfig
	// instances is set if the cluster itself contains its endpoints, because Envoy resolves their host names.
	instances *snapshot.Instances
	// originalDst: the cluster uses the original destination address of a captured connection.
	originalDst bool
	// family selects the address family for DNS lookups.
	family clusterv3.Cluster_DnsLookupFamily
	// credential is the part of the DestinationRule's Secret that the proxy may use.
	credential credential
	// noFiles: the proxy is a gateway, which must not use the client certificate files that the DestinationRule names.
	noFiles bool
	// localityKey identifies the proxy's locality or labels, if the selection of endpoints depends on them.
	localityKey string
	// node is the proxy's node, if proxies use only endpoints on their own node.
	node string
	// selfDiscovery: the proxy receives the zones of its own service's endpoints (see zone_aware.go).
	selfDiscovery bool
	// refused: the proxy must not connect to the host of this service. The cluster then has no endpoints.
	refused bool
	// noOriginalDst: the load balancer PASSTHROUGH of the DestinationRule has no effect. The original destination is
	// trustworthy only if the kernel redirects the connection. At a gateway, clients can choose it with a PROXY
	// protocol header.
	noOriginalDst bool
}

// instanceSubset replaces the subset name in clusters of headless services that forward a request to the instance to
// which the client connected. It is not a valid subset name.
const instanceSubset = "*"

// hasInstanceCluster reports whether the port has an additional cluster with the subset instanceSubset.
func (p *Proxy) hasInstanceCluster(svc *registry.Service, port registry.Port) bool {
	return p.isCaptured() && svc.ByInstance && svc.Headless() && port.Protocol.IsHTTP()
}

func listServiceClusters(s *snapshot.Snapshot, p *Proxy) []serviceCluster {
	scope := p.scope(s)
	out := make([]serviceCluster, 0, len(scope.Services))
	for _, svc := range scope.Services {
		rule := scope.DestinationRule(svc)
		for _, port := range svc.Ports {
			if port.Protocol == registry.UDP {
				continue
			}
			c := newServiceCluster(s, p, svc, port.Number, rule)
			out = append(out, c.withSubset("", s, p))
			if p.hasInstanceCluster(svc, port) {
				out = append(out, c.withSubset(instanceSubset, s, p))
			}
			if rule == nil {
				continue
			}
			for _, subset := range rule.Subsets {
				out = append(out, c.withSubset(subset.GetName(), s, p))
			}
		}
	}
	return out
}

// instances returns those endpoints of svc to which the proxy may connect.
func (p *Proxy) instances(s *snapshot.Snapshot, svc *registry.Service) *snapshot.Instances {
	if p.Type == Router {
		return s.Instances(svc).ForGateways()
	}
	return s.Instances(svc)
}

func newServiceCluster(s *snapshot.Snapshot, p *Proxy, svc *registry.Service, port uint32, rule *snapshot.DestinationRule) serviceCluster {
	instances := p.instances(s, svc)
	c := serviceCluster{svc: svc, port: port, rule: rule, mesh: s.Mesh, facts: instances.Facts(port), selfDiscovery: p.SelfDiscovery}
	switch svc.Resolution {
	case registry.DNS, registry.DNSRoundRobin:
		c.instances, c.family = instances, p.dnsFamily(svc.Resolution)
	case registry.Passthrough:
		declared, _ := svc.Port(port)
		c.originalDst = p.isCaptured() && !(svc.ByName && carriesHostName(declared.Protocol))
		c.family = p.dnsFamily(svc.Resolution)
		refusal := s.Registry.Options().Refusal(svc.Hostname, declared.TargetPort)
		c.refused = refusal.AppliesToAll() || p.Type == Router && refusal.GatewaysOnly
	case registry.Static:
		// TCP connections are forwarded to the instance that the client selected. HTTP requests are balanced as the
		// rules specify.
		declared, _ := svc.Port(port)
		c.originalDst = svc.Headless() && !declared.Protocol.IsHTTP() && p.isCaptured()
	}
	return c
}

// withSubset returns a copy of the cluster for a subset. It also sets the fields that depend on the subset and on the
// proxy.
func (c serviceCluster) withSubset(subset string, s *snapshot.Snapshot, p *Proxy) serviceCluster {
	c.subset = subset
	c.originalDst = c.originalDst || subset == instanceSubset
	balancer := c.rule.Traffic(subset, c.port).LoadBalancer
	c.noOriginalDst = balancer.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH && !p.isCaptured()
	c.noFiles = p.Type == Router && c.rule != nil && !s.MayNameLocal(c.rule.Namespace, p.Namespace)
	c.credential = c.resolveCredential(s, p)
	c.localityKey = c.localityKeyFor(s, p)
	if c.svc.NodeLocal {
		c.node = p.node(s)
	}
	return c
}

func (c serviceCluster) name() string { return OutboundCluster(c.svc.Hostname, c.subset, c.port) }

// subsetName returns the name of the subset in the DestinationRule. It returns "" for instanceSubset.
func (c serviceCluster) subsetName() string { return strings.TrimPrefix(c.subset, instanceSubset) }

func (c serviceCluster) resource(s *snapshot.Snapshot, patches envoyfilter.ClusterPatches) (*xds.Resource, error) {
	if c.instances == nil {
		c.localityKey, c.node = "", "" // EDS delivers the endpoints separately
	}
	return s.Cache.Get(serviceClusterKey{c, patches.Key}, func() (*xds.Resource, error) {
		r, err := clusterResource(patches.Apply(c.build()))
		return attachSkippedPatches(patches.TakeSkipped(), r, err)
	})
}

// serviceClusterKey contains all values on which a service's cluster depends.
type serviceClusterKey struct {
	serviceCluster
	patches string
}

func (c serviceCluster) build() *clusterv3.Cluster {
	port, _ := c.svc.Port(c.port)
	traffic := c.rule.Traffic(c.subset, c.port)
	cluster := &clusterv3.Cluster{
		Name:            c.name(),
		AltStatName:     statName(c.name()),
		ConnectTimeout:  c.mesh.GetConnectTimeout(),
		CircuitBreakers: circuitBreakers(traffic.ConnectionPool, traffic.RetryBudget),
		Metadata:        serviceMetadata(c.svc, c.subsetName()),
	}
	c.setDiscovery(cluster)
	if cluster.LbPolicy != clusterv3.Cluster_CLUSTER_PROVIDED {
		cluster.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}}
		if c.noOriginalDst {
			traffic.LoadBalancer = nil
		}
		setLoadBalancing(cluster, traffic.LoadBalancer)
		c.setZoneRouting(cluster, traffic)
		if zoneSetting(traffic) == nil && len(c.localitySetting(traffic).GetDistribute()) > 0 && cluster.CommonLbConfig != nil {
			cluster.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
				LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
			}
		}
		setOutlierDetection(cluster, traffic.OutlierDetection)
		if c.svc.Sessions {
			acceptDrainingHosts(cluster.CommonLbConfig)
		}
	}
	setConnectionOptions(cluster, traffic.ConnectionPool, c.mesh.GetTcpKeepalive())
	security := c.security(port, traffic)
	if security.unusable || c.refused {
		return stripCluster(cluster)
	}
	security.apply(cluster)
	sendProxyHeader(cluster, traffic.ProxyProtocol)
	if port.Protocol.MayBeHTTP() {
		setHTTPOptions(cluster, c.httpOptions(port, traffic, security))
	}
	return cluster
}

// acceptDrainingHosts makes Envoy send the requests of existing sessions to hosts that drain.
func acceptDrainingHosts(lb *clusterv3.Cluster_CommonLbConfig) {
	if lb != nil {
		lb.OverrideHostStatus = &corev3.HealthStatusSet{Statuses: []corev3.HealthStatus{
			corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_HEALTHY, corev3.HealthStatus_DEGRADED, corev3.HealthStatus_DRAINING,
		}}
	}
}

// statName returns the cluster's name in statistics. As in Istio, a semicolon marks its end, so that the bootstrap's
// tag extraction matches the whole name. Otherwise, for a host outside cluster.local, only the part before the first
// dot would become a label, and the rest would create separate metric families.
func statName(cluster string) string { return cluster + ";" }

// setDiscovery sets how Envoy discovers the cluster's endpoints.
func (c serviceCluster) setDiscovery(cluster *clusterv3.Cluster) {
	switch c.svc.Resolution {
	case registry.DNS, registry.DNSRoundRobin:
		assignment := c.assignment(c.instances)
		cluster.LoadAssignment = assignment
		cluster.DnsLookupFamily = c.family
		setDNSRefresh(cluster)
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		// Envoy accepts only one endpoint in a logical DNS cluster.
		if c.svc.Resolution == registry.DNSRoundRobin && countEndpoints(assignment) == 1 {
			cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		}
	case registry.Passthrough:
		if c.originalDst {
			setOriginalDst(cluster)
		} else {
			setDynamicForward(cluster, c.family)
		}
	case registry.Static:
		if c.originalDst {
			setOriginalDst(cluster)
			return
		}
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		cluster.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()}
	}
}

// dnsFamily returns the address families that Envoy looks up. If both are looked up, Envoy connects to the first
// address that responds (Happy Eyeballs). A strict DNS cluster treats each address as an endpoint and cannot find out
// which family is reachable, so it prefers IPv4.
func (p *Proxy) dnsFamily(how registry.Resolution) clusterv3.Cluster_DnsLookupFamily {
	switch {
	case !p.IPv4:
		return clusterv3.Cluster_AUTO
	case p.IPv6 && how != registry.DNS:
		return clusterv3.Cluster_ALL
	}
	return clusterv3.Cluster_V4_PREFERRED
}

// setDNSRefresh makes Envoy respect the TTL of DNS records, and resolve every minute if a record has none. These fields
// are deprecated, but the cluster type that replaces them is incomplete in the oldest supported Envoy.
func setDNSRefresh(cluster *clusterv3.Cluster) {
	//lint:ignore SA1019 see above
	cluster.RespectDnsTtl = true
	//lint:ignore SA1019 see above
	cluster.DnsRefreshRate = duration(60 * time.Second)
}

func setOriginalDst(cluster *clusterv3.Cluster) {
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
	cluster.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
}

// serviceMetadata returns metadata that identifies the cluster's service in metrics, logs and configuration dumps.
func serviceMetadata(svc *registry.Service, subset string) *corev3.Metadata {
	fields := map[string]*structpb.Value{
		"host":      structpb.NewStringValue(svc.Hostname),
		"name":      structpb.NewStringValue(svc.Name),
		"namespace": structpb.NewStringValue(svc.Namespace),
		packedKey:   structpb.NewStringValue(joinOne(svc.Hostname, svc.Name, svc.Namespace)),
	}
	if subset != "" {
		fields["subset"] = structpb.NewStringValue(subset)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: fields}}}
}

// clusterNameMetadata makes metrics use the cluster's own name, as Istio does for clusters without a service.
func clusterNameMetadata(name string) *corev3.Metadata {
	return filterMetadata("istio", map[string]string{"name": name, packedKey: joinOne(unknown, name, unknown)})
}
