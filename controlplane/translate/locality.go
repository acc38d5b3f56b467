package translate

import (
	"maps"
	"slices"
	"strings"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// The labels that stand for parts of a locality.
const (
	regionLabel  = "topology.kubernetes.io/region"
	zoneLabel    = "topology.kubernetes.io/zone"
	subzoneLabel = "topology.istio.io/subzone"
	networkLabel = "topology.istio.io/network"
)

// localitySetting is what is in force for a cluster about localities: the rule's, or the mesh's; nil where they do not
// matter. Failing over takes that somebody notices failures.
func localitySetting(mesh *meshconfig.MeshConfig, t snapshot.Traffic) *networking.LocalityLoadBalancerSetting {
	setting := t.LoadBalancer.GetLocalityLbSetting()
	if setting == nil {
		setting = mesh.GetLocalityLbSetting()
	}
	switch {
	case setting.GetEnabled() != nil && !setting.GetEnabled().GetValue():
		return nil
	case len(setting.GetDistribute()) > 0:
		return setting
	case t.OutlierDetection == nil:
		return nil
	case setting == nil:
		return &networking.LocalityLoadBalancerSetting{}
	}
	return setting
}

// place is where a caller is, as far as a cluster's endpoints are chosen by it.
func (c outbound) place(p *Proxy) string {
	if zones := zoneSetting(c.rule.Traffic(c.subset, c.port)); zones != nil {
		return zonePlace(p, zones)
	}
	setting := localitySetting(c.mesh, c.rule.Traffic(c.subset, c.port))
	switch {
	case setting == nil:
		return ""
	case len(setting.GetDistribute()) > 0 || len(setting.GetFailoverPriority()) == 0:
		return "at " + p.Locality
	}
	var b strings.Builder
	for _, key := range setting.GetFailoverPriority() {
		if key, _, given := strings.Cut(key, "="); !given {
			b.WriteString(labelOf(p.Labels, p.Locality, "", key) + "\x00")
		}
	}
	return "is " + b.String()
}

// labelOf is a label of a workload; those that stand for its place are taken from there.
func labelOf(labels map[string]string, locality, network, key string) string {
	if v, ok := labels[key]; ok {
		return v
	}
	parts := append(strings.SplitN(locality, "/", 3), "", "", "")
	switch key {
	case regionLabel:
		return parts[0]
	case zoneLabel:
		return parts[1]
	case subzoneLabel:
		return parts[2]
	case networkLabel:
		return network
	}
	return ""
}

// spread orders a cluster's localities for a caller, by the setting in force.
func (c outbound) spread(cla *endpointv3.ClusterLoadAssignment, eps []snapshot.Endpoint) {
	kind, at, _ := strings.Cut(c.near, " ")
	if zones := zoneSetting(c.rule.Traffic(c.subset, c.port)); zones != nil {
		cla.Endpoints = byPriority(eps, func(e snapshot.Endpoint) int { return zonePriority(e, zones, strings.Split(at, "\x00")) })
		return
	}
	setting := localitySetting(c.mesh, c.rule.Traffic(c.subset, c.port))
	switch {
	case setting == nil || len(cla.Endpoints) == 0:
	case len(setting.GetDistribute()) > 0:
		distribute(cla, setting.GetDistribute(), at)
	case kind == "is":
		cla.Endpoints = byPriority(eps, func(e snapshot.Endpoint) int {
			return labelPriority(e, setting.GetFailoverPriority(), strings.Split(at, "\x00"))
		})
	case at != "":
		cla.Endpoints = byPriority(eps, func(e snapshot.Endpoint) int { return localityPriority(e.Locality, at, setting.GetFailover()) })
	}
}

// distribute gives each locality its share of the callers' traffic; localities without a share get none.
func distribute(cla *endpointv3.ClusterLoadAssignment, rules []*networking.LocalityLoadBalancerSetting_Distribute, at string) {
	for _, rule := range rules {
		if !localityMatches(rule.GetFrom(), at) {
			continue
		}
		patterns := slices.SortedFunc(maps.Keys(rule.GetTo()), func(a, b string) int {
			if len(a) != len(b) { // the more special first
				return len(b) - len(a)
			}
			return strings.Compare(a, b)
		})
		left := cla.Endpoints
		var kept []*endpointv3.LocalityLbEndpoints
		for _, pattern := range patterns {
			var of, others []*endpointv3.LocalityLbEndpoints
			total := uint32(0)
			for _, l := range left {
				if localityMatches(pattern, localityName(l.GetLocality())) {
					of, total = append(of, l), total+l.GetLoadBalancingWeight().GetValue()
				} else {
					others = append(others, l)
				}
			}
			for _, l := range of {
				// A thousand to the percent, that small parts of a share are not lost.
				share := uint64(rule.GetTo()[pattern]) * 1000 * uint64(l.GetLoadBalancingWeight().GetValue()) / uint64(total)
				if share > 0 {
					l.LoadBalancingWeight = u32(uint32(share))
					kept = append(kept, l)
				}
			}
			left = others
		}
		cla.Endpoints = kept
		return
	}
}

// localityMatches says whether a locality is one of a pattern, "region/zone/*" or a part of it.
func localityMatches(pattern, locality string) bool {
	if pattern == "*" {
		return true
	}
	want, have := strings.Split(pattern, "/"), strings.Split(locality, "/")
	for i, part := range want {
		switch {
		case part == "*":
			return true
		case i >= len(have) || part != have[i]:
			return false
		}
	}
	return true
}

// localityPriority: the same subzone first, then the zone, the region, the region that is named to fail over to, and all
// else.
func localityPriority(endpoint, caller string, failover []*networking.LocalityLoadBalancerSetting_Failover) int {
	have := append(strings.SplitN(endpoint, "/", 3), "", "", "")
	want := append(strings.SplitN(caller, "/", 3), "", "", "")
	switch {
	case have[0] != want[0]:
		for _, f := range failover {
			if f.GetFrom() == want[0] && f.GetTo() != have[0] {
				return 4
			}
		}
		return 3
	case have[1] != want[1]:
		return 2
	case have[2] != want[2]:
		return 1
	}
	return 0
}

// labelPriority counts which of the labels an endpoint has as wanted, up to the first that it has not.
func labelPriority(e snapshot.Endpoint, keys, own []string) int {
	for i, key := range keys {
		key, want, given := strings.Cut(key, "=")
		if !given {
			want, own = own[0], own[1:]
		}
		if labelOf(e.Labels, e.Locality, e.Network, key) != want {
			return len(keys) - i
		}
	}
	return 0
}

// byPriority groups endpoints by priority and locality. Envoy wants the priorities without gaps.
func byPriority(eps []snapshot.Endpoint, priority func(snapshot.Endpoint) int) []*endpointv3.LocalityLbEndpoints {
	groups := map[int][]snapshot.Endpoint{}
	for _, e := range eps {
		n := priority(e)
		groups[n] = append(groups[n], e)
	}
	var out []*endpointv3.LocalityLbEndpoints
	for i, n := range slices.Sorted(maps.Keys(groups)) {
		for _, l := range loadAssignment("", groups[n]).Endpoints {
			l.Priority = uint32(i)
			out = append(out, l)
		}
	}
	return out
}
