package analysis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

func (c *snapshotCheck) checkDestinationRules() {
	for _, r := range c.s.Resources(config.DestinationRule) {
		spec := r.Spec.(*networking.DestinationRule)
		host := c.s.Registry.ResolveHostname(spec.GetHost(), r.Namespace)
		if c.checkAlias(r, "spec.host", spec.GetHost(), host) {
			continue
		}
		if !c.anyService(host, r.Namespace) {
			c.reportUnknownHost(r, "spec.host", spec.GetHost(), "the rule has no effect")
		}
		c.checkCallerTLS(r)
		c.checkProxyProtocol(r)
		c.checkClientCredentials(r, "spec.trafficPolicy", spec.GetTrafficPolicy())
		c.checkOutlierDetection(r, "spec.trafficPolicy", spec.GetTrafficPolicy(), nil)
		for i, s := range spec.GetSubsets() {
			at := fmt.Sprintf("spec.subsets[%d].trafficPolicy", i)
			c.checkClientCredentials(r, at, s.GetTrafficPolicy())
			c.checkOutlierDetection(r, at, s.GetTrafficPolicy(), s.GetLabels())
		}
	}
}

// checkOutlierDetection reports outlier detection that never ejects an endpoint. Envoy treats maxEjectionPercent as an
// upper limit. If there are few endpoints, this percentage of them is less than one endpoint: Istio's default of 10 %
// needs at least ten endpoints.
func (c *snapshotCheck) checkOutlierDetection(r *config.Resource, at string, p *networking.TrafficPolicy, subset map[string]string) {
	c.coversAllRequests(r, at+".outlierDetection", p.GetOutlierDetection(), subset)
	for i, ps := range p.GetPortLevelSettings() {
		c.coversAllRequests(r, fmt.Sprintf("%s.portLevelSettings[%d].outlierDetection", at, i), ps.GetOutlierDetection(), subset)
	}
}

func (c *snapshotCheck) coversAllRequests(r *config.Resource, field string, o *networking.OutlierDetection, subset map[string]string) {
	svc := c.lookupService(r.Spec.(*networking.DestinationRule).GetHost(), r.Namespace)
	if o == nil || svc == nil || svc.Resolution != registry.Static {
		return
	}
	perPort, most := map[uint32]int{}, 0
	for _, e := range c.s.Registry.Endpoints(svc) {
		if snapshot.Selects(subset, e.Labels) {
			perPort[e.ServicePort]++
			most = max(most, perPort[e.ServicePort])
		}
	}
	percent := cmp.Or(o.GetMaxEjectionPercent(), 10)
	if most > 1 && most*int(percent) < 100 {
		c.reportWarning(config.Questionable, r, field+".maxEjectionPercent", fmt.Sprint(percent),
			fmt.Sprintf("Envoy never ejects an endpoint: %d%% of the %d endpoints of %s is less than one", percent, most, svc.Hostname),
			fmt.Sprintf("set maxEjectionPercent to %d or more; set 100 if calls may fail over to other localities", (100+most-1)/most))
	}
}

// anyService reports whether host, which may be a pattern, matches a service that is visible to namespace.
func (c *snapshotCheck) anyService(host, namespace string) bool {
	if !strings.HasPrefix(host, "*") {
		return c.lookupService(host, namespace) != nil || c.coveredByWildcard(host, namespace)
	}
	return slices.ContainsFunc(c.s.Registry.Services, func(svc *registry.Service) bool {
		return svc.VisibleTo(namespace) && snapshot.HostsOverlap(host, svc.Hostname)
	})
}

func (c *snapshotCheck) coveredByWildcard(host, namespace string) bool {
	return slices.ContainsFunc(c.s.Registry.Services, func(svc *registry.Service) bool {
		return strings.HasPrefix(svc.Hostname, "*") && svc.VisibleTo(namespace) && snapshot.MatchHost(svc.Hostname, host)
	})
}
