package translate

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// patches returns the EnvoyFilter patches that apply to the proxy, or nil if there are none. Cached resources are
// shared by several proxies, so their cache key must identify the patches that apply.
func (p *Proxy) patches(s *snapshot.Snapshot) *envoyfilter.Set {
	filters := s.EnvoyFilters(p.Namespace, p.Labels)
	if len(filters) == 0 {
		return nil
	}
	read := make([]*envoyfilter.Filter, len(filters))
	owners := make(map[*envoyfilter.Filter]*snapshot.EnvoyFilter, len(filters))
	for i, f := range filters {
		read[i] = f.Parse(func(r *config.Resource) any {
			filter, problems := envoyfilter.Read(r)
			for _, problem := range problems {
				f.Note(problem)
			}
			return filter
		}).(*envoyfilter.Filter)
		owners[read[i]] = f
	}
	return envoyfilter.NewSet(read, envoyfilter.Proxy{Version: p.IstioVersion, Envoy: p.EnvoyVersion, Metadata: p.Metadata},
		func(f *envoyfilter.Filter, problem config.Problem) { owners[f].Note(problem) })
}

// outboundContext returns the patch context for the clusters and routes of services.
func (p *Proxy) outboundContext() envoyfilter.Side {
	if p.Type == Router {
		return envoyfilter.Gateway
	}
	return envoyfilter.Outbound
}

// patched returns the proxy's patches for a service's cluster.
func (c serviceCluster) patched(p *Proxy, set *envoyfilter.Set) envoyfilter.ClusterPatches {
	return set.ForCluster(envoyfilter.Cluster{
		Side: p.outboundContext(), Name: c.name(), Services: []string{c.svc.Hostname}, Subset: c.subset, Port: c.port,
	})
}

// patchNonServiceClusters applies the patches to clusters that do not belong to a service.
func (v proxyView) patchNonServiceClusters(clusters []*clusterv3.Cluster) []*clusterv3.Cluster {
	if v.patches == nil {
		return clusters
	}
	out := make([]*clusterv3.Cluster, 0, len(clusters))
	for _, c := range clusters {
		patches := v.patches.ForCluster(v.describeNonServiceCluster(c.GetName()))
		if !patches.Removes() {
			out = append(out, patches.Apply(c))
		}
	}
	return out
}

// describeNonServiceCluster describes a cluster for the match conditions of patches. The cluster does not belong to a
// service, or belongs to the proxy's own workload.
func (v proxyView) describeNonServiceCluster(name string) envoyfilter.Cluster {
	c := envoyfilter.Cluster{Side: v.p.outboundContext(), Name: name}
	if name == inboundPassthroughCluster {
		c.Side = envoyfilter.Inbound
	}
	port, ok := parseInbound(name)
	if !ok {
		return c
	}
	c.Side, c.Port = envoyfilter.Inbound, port
	for _, svc := range v.s.LocalServices(v.p.Namespace, v.p.Labels) {
		if slices.ContainsFunc(svc.Ports, func(p registry.Port) bool { return v.targetPort(svc, p) == port }) {
			c.Services = append(c.Services, svc.Hostname)
		}
	}
	return c
}

// addedClusters returns the clusters that patches add. It omits clusters for whose name taken returns true.
func (v proxyView) addedClusters(taken func(name string) bool) ([]*xds.Resource, error) {
	var out []*xds.Resource
	for _, c := range v.patches.AddedClusters(v.p.Type == Router, taken) {
		r, err := clusterResource(c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// clusterResource returns the resource of a cluster, with the EDS name if its endpoints are discovered by EDS.
func clusterResource(c *clusterv3.Cluster) (*xds.Resource, error) {
	r, err := xds.NewResource(c.GetName(), c)
	if err == nil && c.GetType() == clusterv3.Cluster_EDS && c.GetClusterType() == nil && c.GetEdsClusterConfig() != nil {
		r.Endpoints = c.GetName()
		if name := c.GetEdsClusterConfig().GetServiceName(); name != "" {
			r.Endpoints = name
		}
	}
	return r, err
}

// routesContext describes a route configuration for the match conditions of patches.
func (v proxyView) routesContext(name string) envoyfilter.Routes {
	r := envoyfilter.Routes{Side: v.p.outboundContext(), Name: name, Port: routesPort(name)}
	if _, ok := parseInbound(name); ok {
		r.Side = envoyfilter.Inbound
	}
	if v.p.Type != Router {
		return r
	}
	for _, s := range v.servers() {
		if s.routeName() == name {
			r.Port = s.spec.GetPort().GetNumber()
			r.Gateways = append(r.Gateways, s.gw.FullName())
			r.PortNames = append(r.PortNames, s.spec.GetPort().GetName())
		}
	}
	return r
}

// patchRoutes applies the patches to a route configuration and to its virtual hosts. taken contains the domains of the
// virtual hosts that are delivered separately by VHDS.
func (v proxyView) patchRoutes(name string, rc *routev3.RouteConfiguration, taken domains) *routev3.RouteConfiguration {
	if v.patches == nil {
		return rc
	}
	return v.patches.RouteConfiguration(v.routesContext(name), rc, taken)
}

// patchHost applies the patches to a virtual host that VHDS delivers. It returns nil if a patch removes it.
func (v proxyView) patchHost(route string, host *routev3.VirtualHost) *routev3.VirtualHost {
	if v.patches == nil {
		return host
	}
	return v.patches.VirtualHost(v.routesContext(route), host)
}

func domainsOf(hosts []*routev3.VirtualHost) domains {
	out := domains{}
	for _, host := range hosts {
		out.claim(host.GetDomains()...)
	}
	return out
}

// vhdsDomains returns the domains of those virtual hosts of a route configuration that VHDS delivers. It returns nil if
// no EnvoyFilter applies to the proxy, because only patchRoutes uses the domains.
func (v proxyView) vhdsDomains(route string) domains {
	if v.patches == nil || !v.p.UseVHDS {
		return nil
	}
	plan := v.p.interceptionMode().hostPlan(v, route)
	if plan == nil {
		return nil
	}
	out := domains{}
	for _, h := range plan.hosts {
		out.claim(h.domains...)
	}
	if v.p.OnDemand {
		out.claim("*")
	}
	return out
}

// patchesOfRoutes returns the part of a cache key that identifies the patches of a route configuration.
func (v proxyView) patchesOfRoutes(name string) string {
	if v.patches == nil {
		return ""
	}
	return v.patches.RoutesKey(v.routesContext(name))
}
