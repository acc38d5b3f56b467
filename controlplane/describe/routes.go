package describe

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// requestText describes the HTTP routes.
func requestText(vs *networking.VirtualService) []string {
	var out []string
	for _, r := range vs.GetHttp() {
		out = append(out, matchText(r)+actionText(r)+routeOptionsText(r))
	}
	return out
}

// connectionText describes the TCP and TLS routes.
func connectionText(vs *networking.VirtualService) []string {
	var out []string
	for _, r := range vs.GetTcp() {
		out = append(out, tcpMatchText(r.GetMatch())+"go "+destinationsText(r.GetRoute()))
	}
	for _, r := range vs.GetTls() {
		out = append(out, tlsMatchText(r.GetMatch())+"goes "+destinationsText(r.GetRoute()))
	}
	return out
}

func actionText(r *networking.HTTPRoute) string {
	switch {
	case r.GetRedirect() != nil:
		return "are redirected" + redirectText(r.GetRedirect())
	case r.GetDirectResponse() != nil:
		return fmt.Sprintf("receive a direct response with status %d", r.GetDirectResponse().GetStatus())
	case r.GetDelegate() != nil:
		return "are routed by the delegate VirtualService " + r.GetDelegate().GetNamespace() + "/" + r.GetDelegate().GetName()
	}
	return "go " + destinationsText(r.GetRoute())
}

func redirectText(to *networking.HTTPRedirect) string {
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

// destinationsText describes the destinations of a route.
func destinationsText[D interface {
	GetDestination() *networking.Destination
	GetWeight() int32
}](to []D) string {
	if len(to) == 1 {
		return "to " + destinationText(to[0].GetDestination())
	}
	var targets []string
	for _, d := range to {
		targets = append(targets, fmt.Sprintf("%d to %s", d.GetWeight(), destinationText(d.GetDestination())))
	}
	return "by weight, " + strings.Join(targets, ", ")
}

func destinationText(d *networking.Destination) string {
	words := d.GetHost()
	if d.GetSubset() != "" {
		words += " " + d.GetSubset()
	}
	if d.GetPort().GetNumber() != 0 {
		words += fmt.Sprintf(":%d", d.GetPort().GetNumber())
	}
	return words
}

func routeOptionsText(r *networking.HTTPRoute) string {
	var extra []string
	if r.GetTimeout() != nil {
		extra = append(extra, "timeout "+r.GetTimeout().AsDuration().String())
	}
	if r.GetRetries() != nil {
		extra = append(extra, fmt.Sprintf("%d retries", r.GetRetries().GetAttempts()))
	}
	if r.GetFault().GetAbort() != nil {
		extra = append(extra, fmt.Sprintf("%g%% aborted by fault injection", r.GetFault().GetAbort().GetPercentage().GetValue()))
	}
	if r.GetFault().GetDelay() != nil {
		extra = append(extra, fmt.Sprintf("%g%% delayed by fault injection", r.GetFault().GetDelay().GetPercentage().GetValue()))
	}
	if m := r.GetMirror(); m != nil {
		extra = append(extra, "mirrored to "+destinationText(m))
	}
	for _, m := range r.GetMirrors() {
		extra = append(extra, "mirrored to "+destinationText(m.GetDestination()))
	}
	if r.GetRewrite() != nil {
		extra = append(extra, "rewritten")
	}
	if len(extra) == 0 {
		return ""
	}
	return " (" + strings.Join(extra, ", ") + ")"
}

// trafficText describes the load balancing, the limits and the TLS settings of connections.
func trafficText(t snapshot.Traffic) []string {
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
		out = append(out, "at most "+phrase.Count(n, "connection"))
	}
	if n := pool.GetHttp().GetHttp1MaxPendingRequests(); n > 0 {
		out = append(out, "at most "+phrase.Count(n, "pending request"))
	}
	if n := pool.GetHttp().GetHttp2MaxRequests(); n > 0 {
		out = append(out, "at most "+phrase.Count(n, "concurrent request"))
	}
	if o := t.OutlierDetection; o != nil {
		out = append(out, fmt.Sprintf("endpoints are ejected after %d consecutive errors (5xx)", max(o.GetConsecutive_5XxErrors().GetValue(), o.GetConsecutiveGatewayErrors().GetValue())))
	}
	return out
}

// addAccess describes which clients may call the workload.
func (d *Description) addAccess(s *snapshot.Snapshot, p *translate.Proxy) {
	var allow, deny, custom int
	for _, policy := range s.Policies(p.Namespace, p.Labels) {
		d.Policies = append(d.Policies, newDocument(policy.Resource, policyText(policy.Spec)...))
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
		d.Access = append(d.Access, "an external authorizer first checks the requests that match a CUSTOM policy")
	}
	if deny > 0 {
		d.Access = append(d.Access, "requests that match a DENY policy are refused")
	}
	switch {
	case allow > 0:
		d.Access = append(d.Access, "requests are allowed only if they match an ALLOW policy")
	case deny+custom > 0:
		d.Access = append(d.Access, "all other requests are allowed")
	default:
		d.Access = append(d.Access, "any client may call the workload, because no AuthorizationPolicy applies")
	}
	if aliases := s.Mesh.GetTrustDomainAliases(); len(aliases) > 0 {
		d.Access = append(d.Access, fmt.Sprintf("identities of %s are treated as those of the mesh's own trust domain", strings.Join(aliases, ", ")))
	}
}
