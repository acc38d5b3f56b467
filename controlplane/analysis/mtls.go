package analysis

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// callersTLS is one TLS setting of a DestinationRule.
type callersTLS struct {
	field  string
	mode   networking.ClientTLSSettings_TLSmode
	port   uint32 // 0: all ports without their own settings
	own    []uint32
	subset map[string]string
}

// tlsSettings returns all TLS settings of a rule.
func tlsSettings(spec *networking.DestinationRule) []callersTLS {
	out := policyTLS("spec.trafficPolicy", spec.GetTrafficPolicy(), nil)
	for i, s := range spec.GetSubsets() {
		out = append(out, policyTLS(fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.GetTrafficPolicy(), s.GetLabels())...)
	}
	return out
}

func policyTLS(at string, p *networking.TrafficPolicy, subset map[string]string) []callersTLS {
	var out []callersTLS
	var own []uint32
	for i, ps := range p.GetPortLevelSettings() {
		own = append(own, ps.GetPort().GetNumber())
		if ps.GetTls() != nil {
			out = append(out, callersTLS{fmt.Sprintf("%s.portLevelSettings[%d].tls.mode", at, i), ps.GetTls().GetMode(), ps.GetPort().GetNumber(), nil, subset})
		}
	}
	if p.GetTls() != nil {
		out = append(out, callersTLS{at + ".tls.mode", p.GetTls().GetMode(), 0, own, subset})
	}
	return out
}

// checkCallerTLS compares the callers' TLS mode in a DestinationRule with the modes that the workloads accept.
func (c *snapshotCheck) checkCallerTLS(r *config.Resource) {
	spec := r.Spec.(*networking.DestinationRule)
	settings := tlsSettings(spec)
	if len(settings) == 0 {
		return
	}
	host := c.s.Registry.ResolveHostname(spec.GetHost(), r.Namespace)
	for _, svc := range c.servicesMatching(host, r.Namespace) {
		for _, t := range settings {
			c.compareTLS(r, svc, t)
		}
	}
}

// servicesMatching returns the services that host, which may be a pattern, matches and that are visible to namespace.
func (c *snapshotCheck) servicesMatching(host, namespace string) []*registry.Service {
	candidates := c.s.Registry.ByHostname(host)
	if strings.HasPrefix(host, "*") {
		candidates = c.s.Registry.Services
	}
	var out []*registry.Service
	for _, svc := range candidates {
		if svc.VisibleTo(namespace) && snapshot.MatchHost(host, svc.Hostname) {
			out = append(out, svc)
		}
	}
	return out
}

func (c *snapshotCheck) compareTLS(r *config.Resource, svc *registry.Service, t callersTLS) {
	var strict, mutual, plain int
	for _, e := range c.s.Registry.Endpoints(svc) {
		if t.port != 0 && e.ServicePort != t.port || slices.Contains(t.own, e.ServicePort) || !snapshot.Selects(t.subset, e.Labels) || c.isGateway(e.Labels) {
			continue // a gateway's servers specify what it accepts
		}
		mode := c.s.MTLSMode(e.Namespace, e.Labels, e.Port)
		switch {
		case svc.External || !e.MTLS || mode == snapshot.Disable:
			plain++
		case mode == snapshot.Strict:
			strict++
		default:
			mutual++
		}
	}
	switch {
	case t.mode == networking.ClientTLSSettings_ISTIO_MUTUAL && plain > 0 && strict+mutual == 0:
		c.reportWarning(config.MutualToPlaintext, r, t.field, t.mode.String(), fmt.Sprintf("no endpoint of %s supports the mesh's mutual TLS: calls to it fail", svc.Hostname),
			"remove tls, or add sidecars to its workloads")
	case t.mode != networking.ClientTLSSettings_ISTIO_MUTUAL && strict > 0:
		c.reportWarning(config.PlaintextToStrict, r, t.field, t.mode.String(),
			fmt.Sprintf("endpoints of %s accept the mesh's mutual TLS only (STRICT): calls to them fail", svc.Hostname),
			"remove tls, or use ISTIO_MUTUAL; or make the PeerAuthentication PERMISSIVE")
	case t.mode != networking.ClientTLSSettings_ISTIO_MUTUAL && c.willBeStrict(svc, t):
		c.reportWarning(config.PlaintextToStrict, r, t.field, t.mode.String(),
			fmt.Sprintf("the workloads of %s accept the mesh's mutual TLS only (STRICT): calls to them will fail", svc.Hostname),
			"remove tls, or use ISTIO_MUTUAL; or make the PeerAuthentication PERMISSIVE")
	}
}

// checkProxyProtocol reports a DestinationRule that sends PROXY protocol headers to sidecars, which treat them as
// payload.
func (c *snapshotCheck) checkProxyProtocol(r *config.Resource) {
	spec := r.Spec.(*networking.DestinationRule)
	check := func(field, subset string, of map[string]string, p *networking.TrafficPolicy) {
		if p.GetProxyProtocol() == nil {
			return
		}
		for _, svc := range c.servicesMatching(c.s.Registry.ResolveHostname(spec.GetHost(), r.Namespace), r.Namespace) {
			if c.rejectsProxyHeader(svc, of, func(port uint32) snapshot.Traffic { return snapshot.DocumentTraffic(spec, subset, port) }) {
				c.reportWarning(config.Questionable, r, field+".proxyProtocol", p.GetProxyProtocol().GetVersion().String(),
					fmt.Sprintf("the workloads of %s have sidecars, which expect no PROXY protocol header: calls to it fail", svc.Hostname),
					"remove proxyProtocol; mutual TLS identifies the caller")
				return
			}
		}
	}
	check("spec.trafficPolicy", "", nil, spec.GetTrafficPolicy())
	for i, s := range spec.GetSubsets() {
		check(fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.GetName(), s.GetLabels(), s.GetTrafficPolicy())
	}
}

// rejectsProxyHeader reports whether the sidecar of an endpoint would parse a PROXY protocol header as mutual TLS or as
// an HTTP request. For other protocols, the sidecar forwards the header to the workload, which may expect it.
func (c *snapshotCheck) rejectsProxyHeader(svc *registry.Service, subset map[string]string, traffic func(port uint32) snapshot.Traffic) bool {
	return !svc.External && slices.ContainsFunc(c.s.Registry.Endpoints(svc), func(e registry.Endpoint) bool {
		if !e.MTLS || !snapshot.Selects(subset, e.Labels) || c.isGateway(e.Labels) {
			return false
		}
		port, _ := svc.Port(e.ServicePort)
		tls := traffic(e.ServicePort).TLS
		mutual := tls == nil && c.s.MTLSMode(e.Namespace, e.Labels, e.Port) != snapshot.Disable || tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL
		return mutual || port.Protocol.IsHTTP()
	})
}

// willBeStrict reports whether the workloads of a service without endpoints will accept only mutual TLS.
func (c *snapshotCheck) willBeStrict(svc *registry.Service, t callersTLS) bool {
	if svc.External || len(svc.Selector) == 0 || len(c.s.Registry.Endpoints(svc)) > 0 {
		return false
	}
	for _, p := range svc.Ports {
		if t.port != 0 && p.Number != t.port || slices.Contains(t.own, p.Number) {
			continue
		}
		if c.s.MTLSMode(svc.Namespace, svc.Selector, p.TargetPort) == snapshot.Strict {
			return true
		}
	}
	return false
}

// checkStrictWithoutSidecar reports workloads with a STRICT PeerAuthentication but without a sidecar that enforces it.
func (c *snapshotCheck) checkStrictWithoutSidecar() {
	if len(c.s.Resources(config.PeerAuthentication)) == 0 {
		return
	}
	withoutSidecar := map[*config.Resource]map[string]bool{}
	for _, svc := range c.s.Registry.Services {
		if svc.External {
			continue
		}
		for _, e := range c.s.Registry.Endpoints(svc) {
			if c.s.MTLSMode(e.Namespace, e.Labels, e.Port) != snapshot.Strict || e.Workload == "" || e.MTLS || c.isGateway(e.Labels) {
				continue
			}
			by := c.s.PeerAuthentication(e.Namespace, e.Labels, e.Port)
			if withoutSidecar[by] == nil {
				withoutSidecar[by] = map[string]bool{}
			}
			withoutSidecar[by][e.Namespace+"/"+e.Workload] = true
		}
	}
	for _, r := range c.s.Resources(config.PeerAuthentication) {
		if names := withoutSidecar[r]; len(names) > 0 {
			sorted, field := mapNames(names), "spec.mtls.mode"
			if r.Spec.(*security.PeerAuthentication).GetMtls().GetMode() != snapshot.Strict {
				field = "spec.portLevelMtls"
			}
			c.reportWarning(config.StrictWithoutSidecar, r, field, "STRICT",
				fmt.Sprintf("STRICT is not enforced for %s without a sidecar: %s", phrase.Count(len(names), "workload"), phrase.ListFirst(sorted, 5)),
				"add sidecars to these workloads; if they have sidecars, declare the sidecars with a serviceAccount or the label security.istio.io/tlsMode: istio")
		}
	}
}

func mapNames(set map[string]bool) []string {
	names := make([]string, 0, len(set))
	for n := range set {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func (c *snapshotCheck) isGateway(labels map[string]string) bool {
	return slices.ContainsFunc(c.s.AllGateways(), func(g snapshot.Gateway) bool { return snapshot.Selects(g.Spec.GetSelector(), labels) })
}
