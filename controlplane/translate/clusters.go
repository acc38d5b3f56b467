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

	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Clusters are all clusters of the proxy: those of the services it sees, in the order of their names, each followed by
// its subsets; then those of its workload; then those of no service.
func Clusters(s *snapshot.Snapshot, p *Proxy) ([]*xds.Resource, error) {
	v := newView(s, p)
	out, err := v.serviceClusters()
	if err != nil {
		return nil, err
	}
	for _, c := range v.patchOwn(p.capture().ownClusters(s, p)) {
		r, err := clusterResource(c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	added, err := v.addedClusters(func(name string) bool {
		return slices.ContainsFunc(out, func(r *xds.Resource) bool { return r.Name == name })
	})
	v.noted(xds.ClusterType, every, out)
	return append(out, added...), err
}

// NamedClusters are those of the proxy's clusters that are named, in the order of the names; names that lead nowhere are
// left out.
func NamedClusters(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	out, err := v.namedClusters(names)
	v.noted(xds.ClusterType, oneOf(names), out)
	return out, err
}

func (v view) namedClusters(names []string) ([]*xds.Resource, error) {
	s, p := v.s, v.p
	var out []*xds.Resource
	own := map[string]bool{}
	for _, name := range names {
		c, ok := findOutbound(s, p, name)
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
	rest, err := v.namedOwn(own)
	return append(out, rest...), err
}

// namedOwn are those of the clusters that are named which are of no service, in their order.
func (v view) namedOwn(named map[string]bool) ([]*xds.Resource, error) {
	var out []*xds.Resource
	taken := map[string]bool{}
	for _, c := range v.patchOwn(v.p.capture().ownClusters(v.s, v.p)) {
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

// findOutbound finds the cluster of a name among those of the services that the proxy sees.
func findOutbound(s *snapshot.Snapshot, p *Proxy, name string) (outbound, bool) {
	host, subset, number, ok := parseOutbound(name)
	if !ok {
		return outbound{}, false
	}
	scope := p.scope(s)
	svc := scope.Service(host)
	if svc == nil {
		return outbound{}, false
	}
	port, found := svc.Port(number)
	rule := scope.DestinationRule(svc)
	if !found || port.Protocol == registry.UDP {
		return outbound{}, false
	}
	if subset != "" && rule.Subset(subset) == nil && !(subset == theInstance && p.callsInstances(svc, port)) {
		return outbound{}, false
	}
	return newOutbound(s, p, svc, number, rule).of(subset, s, p), true
}

// outbound is one cluster of a service's port, and the key of its resource: all that it depends on.
type outbound struct {
	svc    *registry.Service
	port   uint32
	subset string
	rule   *snapshot.DestinationRule
	facts  *snapshot.Facts
	mesh   *meshconfig.MeshConfig
	// instances is set where the endpoints are part of the cluster, as Envoy resolves their names by itself.
	instances *snapshot.Instances
	// byAddress: the caller's destination is known as an address (its connection was captured), not as a name.
	byAddress bool
	// family is which addresses it looks up, where names are part of the cluster.
	family clusterv3.Cluster_DnsLookupFamily
	// credential is what of the Secret that the rule names the caller may have.
	credential credential
	// near is where the caller is, if its endpoints are chosen by that.
	near string
	// zoned: the caller knows which zones the like of it are in.
	zoned bool
}

// theInstance stands in the place of a subset's name where requests go to the instance of a headless service that the caller
// connected to. No subset is called so.
const theInstance = "*"

// callsInstances says whether a service's port has a cluster for that beside the one that balances requests to the service.
func (p *Proxy) callsInstances(svc *registry.Service, port registry.Port) bool {
	return p.captured() && svc.ByInstance && svc.Headless() && port.Protocol.IsHTTP()
}

func outboundClusters(s *snapshot.Snapshot, p *Proxy) []outbound {
	scope := p.scope(s)
	out := make([]outbound, 0, len(scope.Services))
	for _, svc := range scope.Services {
		rule := scope.DestinationRule(svc)
		for _, port := range svc.Ports {
			if port.Protocol == registry.UDP {
				continue
			}
			c := newOutbound(s, p, svc, port.Number, rule)
			out = append(out, c.of("", s, p))
			if p.callsInstances(svc, port) {
				out = append(out, c.of(theInstance, s, p))
			}
			if rule == nil {
				continue
			}
			for _, subset := range rule.Subsets {
				out = append(out, c.of(subset.GetName(), s, p))
			}
		}
	}
	return out
}

func newOutbound(s *snapshot.Snapshot, p *Proxy, svc *registry.Service, port uint32, rule *snapshot.DestinationRule) outbound {
	instances := s.Instances(svc)
	c := outbound{svc: svc, port: port, rule: rule, mesh: s.Mesh, facts: instances.Facts(port), zoned: p.SelfDiscovery}
	switch svc.Resolution {
	case registry.DNS, registry.DNSRoundRobin:
		c.instances, c.family = instances, p.dnsFamily(svc.Resolution)
	case registry.Passthrough:
		declared, _ := svc.Port(port)
		c.byAddress = p.captured() && !(svc.ByName && saysName(declared.Protocol))
		c.family = p.dnsFamily(svc.Resolution)
	case registry.Static:
		// Bytes go to the very workload that the caller chose; requests to the service are balanced, as rules for it have it.
		declared, _ := svc.Port(port)
		c.byAddress = svc.Headless() && !declared.Protocol.IsHTTP() && p.captured()
	}
	return c
}

// of is the same for a subset, as a proxy calls it.
func (c outbound) of(subset string, s *snapshot.Snapshot, p *Proxy) outbound {
	c.subset = subset
	c.byAddress = c.byAddress || subset == theInstance
	c.credential = c.credentialOf(s, p)
	c.near = c.place(p)
	return c
}

func (c outbound) name() string { return OutboundCluster(c.svc.Hostname, c.subset, c.port) }

// subsetName is the name of the subset, as a rule has it.
func (c outbound) subsetName() string { return strings.TrimPrefix(c.subset, theInstance) }

func (c outbound) resource(s *snapshot.Snapshot, patches envoyfilter.ClusterPatches) (*xds.Resource, error) {
	if c.instances == nil {
		c.near = "" // the endpoints come by themselves
	}
	return s.Cache.Get(outboundKey{c, patches.Key}, func() (*xds.Resource, error) {
		r, err := clusterResource(patches.Apply(c.build()))
		return withNotes(patches.Take(), r, err)
	})
}

// outboundKey is all that a service's cluster depends on.
type outboundKey struct {
	outbound
	patches string
}

func (c outbound) build() *clusterv3.Cluster {
	port, _ := c.svc.Port(c.port)
	traffic := c.rule.Traffic(c.subset, c.port)
	cluster := &clusterv3.Cluster{
		Name:            c.name(),
		AltStatName:     statName(c.name()),
		ConnectTimeout:  c.mesh.GetConnectTimeout(),
		CircuitBreakers: circuitBreakers(traffic.ConnectionPool, traffic.RetryBudget),
		Metadata:        serviceMetadata(c.svc, c.subsetName()),
	}
	c.discover(cluster)
	if cluster.LbPolicy != clusterv3.Cluster_CLUSTER_PROVIDED {
		cluster.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}}
		loadBalance(cluster, traffic.LoadBalancer)
		c.routeByZone(cluster, traffic)
		if zoneSetting(traffic) == nil && len(localitySetting(c.mesh, traffic).GetDistribute()) > 0 && cluster.CommonLbConfig != nil {
			cluster.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
				LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
			}
		}
		detectOutliers(cluster, traffic.OutlierDetection)
	}
	connect(cluster, traffic.ConnectionPool, c.mesh.GetTcpKeepalive())
	security := c.security(port, traffic)
	if security.unusable {
		return nowhere(cluster)
	}
	security.apply(cluster)
	sendProxyHeader(cluster, traffic.ProxyProtocol)
	if port.Protocol.MayBeHTTP() {
		setHTTPOptions(cluster, c.httpOptions(port, traffic, security))
	}
	return cluster
}

// statName is the cluster's name in statistics. Its semicolon, as in Istio, says where it ends, so that the bootstrap makes a
// label of the whole: of a host of no cluster.local only what is before the first dot was one, and the rest made families of
// metrics of its own.
func statName(cluster string) string { return cluster + ";" }

// discover says how the cluster gets its endpoints.
func (c outbound) discover(cluster *clusterv3.Cluster) {
	switch c.svc.Resolution {
	case registry.DNS, registry.DNSRoundRobin:
		assignment := c.assignment(c.instances)
		cluster.LoadAssignment = assignment
		cluster.DnsLookupFamily = c.family
		refreshNames(cluster)
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		// Envoy takes a logical DNS cluster with one name only.
		if c.svc.Resolution == registry.DNSRoundRobin && countEndpoints(assignment) == 1 {
			cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		}
	case registry.Passthrough:
		if c.byAddress {
			originalDestination(cluster)
		} else {
			forwardByName(cluster, c.family)
		}
	case registry.Static:
		if c.byAddress {
			originalDestination(cluster)
			return
		}
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		cluster.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()}
	}
}

// dnsFamily is which of a name's addresses a proxy wants. Where both families are at hand, the one that answers first is
// taken; with all addresses as endpoints of their own nothing tells which of them can be reached, and IPv4 is taken first.
func (p *Proxy) dnsFamily(how registry.Resolution) clusterv3.Cluster_DnsLookupFamily {
	switch {
	case !p.IPv4:
		return clusterv3.Cluster_AUTO
	case p.IPv6 && how != registry.DNS:
		return clusterv3.Cluster_ALL
	}
	return clusterv3.Cluster_V4_PREFERRED
}

// refreshNames asks again when the answer's time is over, or every minute when it has none. Envoy's newer way to say so is
// a cluster type that the oldest Envoy served here has only in part.
func refreshNames(cluster *clusterv3.Cluster) {
	//lint:ignore SA1019 see above
	cluster.RespectDnsTtl = true
	//lint:ignore SA1019 see above
	cluster.DnsRefreshRate = duration(60 * time.Second)
}

func originalDestination(cluster *clusterv3.Cluster) {
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
	cluster.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
}

// serviceMetadata tells whose cluster it is: metrics and logs, and those who read a configuration dump.
func serviceMetadata(svc *registry.Service, subset string) *corev3.Metadata {
	fields := map[string]*structpb.Value{
		"host":      structpb.NewStringValue(svc.Hostname),
		"name":      structpb.NewStringValue(svc.Name),
		"namespace": structpb.NewStringValue(svc.Namespace),
	}
	if subset != "" {
		fields["subset"] = structpb.NewStringValue(subset)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: fields}}}
}

// noService has metrics name a cluster of no service by itself, as Istio's do.
func noService(name string) *corev3.Metadata {
	return filterMetadata("istio", map[string]string{"name": name})
}
