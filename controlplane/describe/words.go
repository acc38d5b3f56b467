package describe

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// requestWords say what becomes of requests, route by route.
func requestWords(vs *networking.VirtualService) []string {
	var out []string
	for _, r := range vs.GetHttp() {
		out = append(out, matchWords(r)+actionWords(r)+extraWords(r))
	}
	return out
}

// connectionWords say that of connections that are no requests.
func connectionWords(vs *networking.VirtualService) []string {
	var out []string
	for _, r := range vs.GetTcp() {
		out = append(out, tcpMatchWords(r.GetMatch())+"go "+targetsWords(r.GetRoute()))
	}
	for _, r := range vs.GetTls() {
		out = append(out, tlsMatchWords(r.GetMatch())+"goes "+targetsWords(r.GetRoute()))
	}
	return out
}

func actionWords(r *networking.HTTPRoute) string {
	switch {
	case r.GetRedirect() != nil:
		return "are redirected" + redirectWords(r.GetRedirect())
	case r.GetDirectResponse() != nil:
		return fmt.Sprintf("are answered with %d", r.GetDirectResponse().GetStatus())
	case r.GetDelegate() != nil:
		return "are left to VirtualService " + r.GetDelegate().GetNamespace() + "/" + r.GetDelegate().GetName()
	}
	return "go " + targetsWords(r.GetRoute())
}

func redirectWords(to *networking.HTTPRedirect) string {
	var words string
	if to.GetScheme() != "" {
		words += " to " + to.GetScheme()
	}
	if to.GetAuthority() != "" {
		words += " to " + to.GetAuthority()
	}
	if to.GetPort() != 0 {
		words += fmt.Sprintf(" to port %d", to.GetPort())
	}
	if to.GetUri() != "" {
		words += fmt.Sprintf(" to %q", to.GetUri())
	}
	return words
}

// targetsWords say where a route leads.
func targetsWords[D interface {
	GetDestination() *networking.Destination
	GetWeight() int32
}](to []D) string {
	if len(to) == 1 {
		return "to " + destinationWords(to[0].GetDestination())
	}
	var targets []string
	for _, d := range to {
		targets = append(targets, fmt.Sprintf("%d to %s", d.GetWeight(), destinationWords(d.GetDestination())))
	}
	return "by weight, " + strings.Join(targets, ", ")
}

func destinationWords(d *networking.Destination) string {
	words := d.GetHost()
	if d.GetSubset() != "" {
		words += " " + d.GetSubset()
	}
	if d.GetPort().GetNumber() != 0 {
		words += fmt.Sprintf(":%d", d.GetPort().GetNumber())
	}
	return words
}

func extraWords(r *networking.HTTPRoute) string {
	var extra []string
	if r.GetTimeout() != nil {
		extra = append(extra, "at most "+r.GetTimeout().AsDuration().String())
	}
	if r.GetRetries() != nil {
		extra = append(extra, fmt.Sprintf("%d retries", r.GetRetries().GetAttempts()))
	}
	if r.GetFault().GetAbort() != nil {
		extra = append(extra, fmt.Sprintf("%g%% fail on purpose", r.GetFault().GetAbort().GetPercentage().GetValue()))
	}
	if r.GetFault().GetDelay() != nil {
		extra = append(extra, fmt.Sprintf("%g%% are delayed on purpose", r.GetFault().GetDelay().GetPercentage().GetValue()))
	}
	if m := r.GetMirror(); m != nil {
		extra = append(extra, "with a copy to "+destinationWords(m))
	}
	for _, m := range r.GetMirrors() {
		extra = append(extra, "with a copy to "+destinationWords(m.GetDestination()))
	}
	if r.GetRewrite() != nil {
		extra = append(extra, "rewritten")
	}
	if len(extra) == 0 {
		return ""
	}
	return " (" + strings.Join(extra, ", ") + ")"
}

// trafficWords say how connections are made and what limits them.
func trafficWords(t snapshot.Traffic) []string {
	var out []string
	if t.TLS != nil {
		out = append(out, "TLS: "+t.TLS.GetMode().String())
	}
	if lb := t.LoadBalancer; lb != nil {
		switch {
		case lb.GetConsistentHash() != nil:
			out = append(out, "balanced by consistent hash")
		case lb.GetSimple() != networking.LoadBalancerSettings_UNSPECIFIED:
			out = append(out, "balanced by "+lb.GetSimple().String())
		}
	}
	pool := t.ConnectionPool
	if n := pool.GetTcp().GetMaxConnections(); n > 0 {
		out = append(out, fmt.Sprintf("at most %d connections", n))
	}
	if n := pool.GetHttp().GetHttp1MaxPendingRequests(); n > 0 {
		out = append(out, fmt.Sprintf("at most %d requests that wait", n))
	}
	if n := pool.GetHttp().GetHttp2MaxRequests(); n > 0 {
		out = append(out, fmt.Sprintf("at most %d requests at a time", n))
	}
	if o := t.OutlierDetection; o != nil {
		out = append(out, fmt.Sprintf("endpoints are left out after %d errors (5xx) in a row", max(o.GetConsecutive_5XxErrors().GetValue(), o.GetConsecutiveGatewayErrors().GetValue())))
	}
	return out
}

// access says who may call the workload.
func (d *Description) access(s *snapshot.Snapshot, p *translate.Proxy) {
	var allow, deny, custom int
	for _, policy := range s.Policies(p.Namespace, p.Labels) {
		d.Policies = append(d.Policies, document(policy.Resource, policyWords(policy.Spec)...))
		switch policy.Spec.GetAction() {
		case security.AuthorizationPolicy_ALLOW:
			allow++
		case security.AuthorizationPolicy_DENY:
			deny++
		case security.AuthorizationPolicy_CUSTOM:
			custom++
		}
	}
	if custom > 0 {
		d.Access = append(d.Access, "what CUSTOM policies match is asked of an external authorizer first")
	}
	if deny > 0 {
		d.Access = append(d.Access, "what a DENY policy matches is refused")
	}
	switch {
	case allow > 0:
		d.Access = append(d.Access, "of the rest only what an ALLOW policy matches is let in")
	case deny+custom > 0:
		d.Access = append(d.Access, "the rest is let in")
	default:
		d.Access = append(d.Access, "everyone may call it: no AuthorizationPolicy applies")
	}
	if aliases := s.Mesh.GetTrustDomainAliases(); len(aliases) > 0 {
		d.Access = append(d.Access, fmt.Sprintf("identities of %s are taken for those of the mesh's own trust domain", strings.Join(aliases, ", ")))
	}
}
