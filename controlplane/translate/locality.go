package translate

import (
	"maps"
	"slices"
	"strings"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// The labels that specify parts of a locality.
const (
	regionLabel  = "topology.kubernetes.io/region"
	zoneLabel    = "topology.kubernetes.io/zone"
	subzoneLabel = "topology.istio.io/subzone"
	networkLabel = "topology.istio.io/network"
)

// localitySetting returns the effective locality setting of a cluster: the setting of its DestinationRule, or else of
// the mesh. It returns nil if the selection of endpoints does not depend on localities, or if the service's traffic
// distribution takes precedence over the mesh. As in Istio, failover has an effect only with outlier detection.
func (c serviceCluster) localitySetting(t snapshot.Traffic) *networking.LocalityLoadBalancerSetting {
	setting := t.LoadBalancer.GetLocalityLbSetting()
	if setting == nil && c.distribution(t) == "" {
		setting = c.mesh.GetLocalityLbSetting()
	}
	switch {
	case setting.GetEnabled() != nil && !setting.GetEnabled().GetValue():
		return nil
	case len(setting.GetDistribute()) > 0:
		return setting
	case t.OutlierDetection == nil, c.distribution(t) != "":
		return nil
	case setting == nil:
		return &networking.LocalityLoadBalancerSetting{}
	}
	return setting
}

// localityKeyFor returns the part of the caller's locality and labels on which the cluster's endpoints depend.
func (c serviceCluster) localityKeyFor(s *snapshot.Snapshot, p *Proxy) string {
	traffic := c.rule.Traffic(c.subset, c.port)
	if zones := zoneSetting(traffic); zones != nil {
		return zonePlace(s, p, zones)
	}
	if d := c.distribution(traffic); d != "" {
		return distributionKey(s, p, d)
	}
	setting := c.localitySetting(traffic)
	switch {
	case setting == nil:
		return ""
	case len(setting.GetDistribute()) > 0 || len(setting.GetFailoverPriority()) == 0:
		return "at " + p.locality(s)
	}
	var b strings.Builder
	for _, key := range setting.GetFailoverPriority() {
		if key, _, given := strings.Cut(key, "="); !given {
			b.WriteString(workloadLabel(p.Labels, p.locality(s), "", key) + "\x00")
		}
	}
	return "is " + b.String()
}

// workloadLabel returns the value of the label that is called key. If a topology label is missing, it returns the value
// from the workload's locality or network.
func workloadLabel(labels map[string]string, locality, network, key string) string {
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

// applyLocality applies the effective locality setting to a cluster's endpoints, for one caller.
func (c serviceCluster) applyLocality(cla *endpointv3.ClusterLoadAssignment, eps []snapshot.Endpoint) {
	kind, at, _ := strings.Cut(c.localityKey, " ")
	traffic := c.rule.Traffic(c.subset, c.port)
	if zones := zoneSetting(traffic); zones != nil {
		cla.Endpoints = groupByPriority(eps, func(e snapshot.Endpoint) int { return zonePriority(e, zones, strings.Split(at, "\x00")) })
		return
	}
	if d := c.distribution(traffic); d != "" {
		if isUnknownPlace(at) {
			return
		}
		cla.Endpoints = groupByPriority(eps, func(e snapshot.Endpoint) int { return distributionPriority(e, d, at) })
		return
	}
	setting := c.localitySetting(traffic)
	switch {
	case setting == nil || len(cla.Endpoints) == 0:
	case len(setting.GetDistribute()) > 0:
		applyDistribute(cla, setting.GetDistribute(), at)
	case kind == "is":
		cla.Endpoints = groupByPriority(eps, func(e snapshot.Endpoint) int {
			return labelPriority(e, setting.GetFailoverPriority(), strings.Split(at, "\x00"))
		})
	case at != "":
		cla.Endpoints = groupByPriority(eps, func(e snapshot.Endpoint) int { return localityPriority(e.Locality, at, setting.GetFailover()) })
	}
}

// applyDistribute applies the first rule that matches the caller's locality. It sets the weight of each locality to its
// share of the traffic, and removes localities without a share.
func applyDistribute(cla *endpointv3.ClusterLoadAssignment, rules []*networking.LocalityLoadBalancerSetting_Distribute, at string) {
	for _, rule := range rules {
		if !localityMatches(rule.GetFrom(), at) {
			continue
		}
		patterns := slices.SortedFunc(maps.Keys(rule.GetTo()), func(a, b string) int {
			if len(a) != len(b) { // longer patterns first
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
				// The factor of 1,000 preserves fractions of a share.
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

// localityMatches reports whether a locality matches a pattern, "region/zone/*" or a prefix of it.
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

// localityPriority returns the priority of an endpoint for a caller: 0 in the caller's subzone, 1 in its zone, 2 in its
// region, 3 in the failover region and 4 in all other regions. If no failover is specified for the caller's region, all
// other regions have priority 3.
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

// labelPriority returns 0 if the endpoint matches all labels. Otherwise it returns the number of labels from the first
// mismatch to the end of the list, so an earlier mismatch yields a higher number.
func labelPriority(e snapshot.Endpoint, keys, own []string) int {
	for i, key := range keys {
		key, want, given := strings.Cut(key, "=")
		if !given {
			want, own = own[0], own[1:]
		}
		if workloadLabel(e.Labels, e.Locality, e.Network, key) != want {
			return len(keys) - i
		}
	}
	return 0
}

// groupByPriority groups endpoints by priority and locality. Envoy requires priorities without gaps.
func groupByPriority(eps []snapshot.Endpoint, priority func(snapshot.Endpoint) int) []*endpointv3.LocalityLbEndpoints {
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
