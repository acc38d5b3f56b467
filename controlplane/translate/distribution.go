package translate

import (
	"cmp"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// locality returns the proxy's locality: the one that the proxy reports, or else the locality of its pod. A pod does
// not know the locality of its node.
func (p *Proxy) locality(s *snapshot.Snapshot) string {
	return cmp.Or(p.Locality, s.Registry.PodLocality(p.Namespace, p.Name))
}

// node returns the name of the proxy's Kubernetes node, or "" if it is unknown.
func (p *Proxy) node(s *snapshot.Snapshot) string {
	if name := p.Metadata["NODE_NAME"]; name != "" {
		return name
	}
	if pod := s.Registry.Pod(p.Namespace, p.Name); pod != nil {
		return pod.Spec.(*config.PodSpec).Node
	}
	return ""
}

// distribution returns the traffic distribution of the cluster's service. The locality settings of a DestinationRule
// take precedence over it.
func (c serviceCluster) distribution(t snapshot.Traffic) registry.Distribution {
	if t.LoadBalancer.GetLocalityLbSetting() != nil || t.LoadBalancer.GetZoneAwareLbSetting() != nil {
		return ""
	}
	return c.svc.Distribution
}

// distributionKey returns the part of the proxy's place on which the priorities of a traffic distribution depend. It is
// not empty even if the place is unknown, because whether endpoints depend on the place is cached for all proxies of a
// scope.
func distributionKey(s *snapshot.Snapshot, p *Proxy, d registry.Distribution) string {
	parts := append(strings.SplitN(p.locality(s), "/", 3), "", "")
	place := strings.Join(parts[:2], "/")
	if d == registry.PreferSameNode {
		place = strings.Join(parts[:3], "/") + "\x00" + p.node(s)
	}
	return "near " + place
}

// isUnknownPlace reports whether a proxy's place, without the prefix of distributionKey, contains no locality and node.
func isUnknownPlace(at string) bool { return strings.Trim(at, "/\x00") == "" }

// distributionPriority returns the priority of an endpoint: 0 for the nearest ones. at is the proxy's place, without
// the prefix of distributionKey. Unlike failover, these priorities do not require outlier detection.
func distributionPriority(e snapshot.Endpoint, d registry.Distribution, at string) int {
	place, node, _ := strings.Cut(at, "\x00")
	if d == registry.PreferSameNode && e.Node != "" && e.Node == node {
		return 0
	}
	have := append(strings.SplitN(e.Locality, "/", 3), "", "", "")
	want := strings.Split(place, "/")
	for i, part := range want {
		if have[i] != part {
			return 1 + len(want) - i
		}
	}
	if d == registry.PreferSameNode {
		return 1
	}
	return 0
}
