package analysis

import (
	"fmt"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkClaimRoutes reports routes that match claims of a token, if they are at gateways whose tokens no
// RequestAuthentication verifies.
func (c *snapshotCheck) checkClaimRoutes() {
	for _, v := range c.s.VirtualServices() {
		written := withoutDelegates(v)
		for i, route := range written.Spec.GetHttp() {
			for j, match := range route.GetMatch() {
				c.checkClaimMatch(v, fmt.Sprintf("spec.http[%d].match[%d]", i, j), match)
			}
		}
	}
}

func (c *snapshotCheck) checkClaimMatch(v *snapshot.VirtualService, at string, match *networking.HTTPMatchRequest) {
	for field, headers := range map[string]map[string]*networking.StringMatch{"headers": match.GetHeaders(), "withoutHeaders": match.GetWithoutHeaders()} {
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			if _, claim := config.RoutingClaim(name); !claim {
				continue
			}
			effect := "the route never matches"
			if field == "withoutHeaders" {
				effect = "the condition is always met"
			}
			if g := c.findUnverified(v); g != nil {
				missing := config.MissingObject{Kind: config.RequestAuthentication, Namespace: g.Namespace, Effect: effect}
				c.reportMissing(config.RequestUnverified, v.Resource, fmt.Sprintf("%s.%s[%s]", at, field, name), name,
					"no RequestAuthentication verifies tokens at the Gateway "+g.FullName(), missing, "add a RequestAuthentication for the gateway's workloads")
			}
		}
	}
}

// findUnverified returns a Gateway to which the rule is bound and whose workloads have no RequestAuthentication, or
// nil.
func (c *snapshotCheck) findUnverified(v *snapshot.VirtualService) *snapshot.Gateway {
	for _, g := range c.s.AllGateways() {
		if !v.IsForGateway(g.FullName()) {
			continue
		}
		namespaces := c.workloadNamespaces(g.Spec.GetSelector())
		if len(namespaces) == 0 {
			namespaces = []string{g.Namespace}
		}
		verifies := func(namespace string) bool { return c.mayVerifyTokens(namespace, g.Spec.GetSelector()) }
		if !slices.ContainsFunc(namespaces, verifies) {
			return &g
		}
	}
	return nil
}
