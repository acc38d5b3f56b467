// Package describe describes the effect of the mesh's documents on one workload: which documents apply, which clients
// may call it, where its requests are routed, and what limits them.
package describe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// Description describes one workload.
type Description struct {
	Workload       string            `json:"workload"`
	Namespace      string            `json:"namespace"`
	Type           string            `json:"type"`
	Address        string            `json:"address"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	Envoy          string            `json:"envoy,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	// Inbound lists the ports of the services that select the workload.
	Inbound []Inbound `json:"inbound,omitempty"`
	// Policies lists the AuthorizationPolicies and RequestAuthentications that apply to the workload.
	Policies []Document `json:"policies,omitempty"`
	// Access summarizes the effect of the policies.
	Access []string `json:"access,omitempty"`
	// Gateways lists the Gateways that select the proxy. It is empty for sidecars.
	Gateways []Document `json:"gateways,omitempty"`
	// Scope describes which services are visible to the workload.
	Scope []string `json:"scope,omitempty"`
	// Outbound lists the rules that apply to the workload's own requests.
	Outbound []Document `json:"outbound,omitempty"`
	// OtherDocuments lists the other documents that apply to the workload, for example EnvoyFilters, Telemetry
	// documents and WasmPlugins.
	OtherDocuments []Document `json:"others,omitempty"`
}

// Inbound describes one port of a service that selects the workload.
type Inbound struct {
	Service  string `json:"service"`
	Port     uint32 `json:"port"`
	Target   uint32 `json:"targetPort,omitempty"`
	Protocol string `json:"protocol"`
	// MTLS describes whether the port accepts mutual TLS, plaintext or both. By is the name of the document that
	// specifies this.
	MTLS string `json:"mtls"`
	By   string `json:"by,omitempty"`
	// Endpoint is the Sidecar's defaultEndpoint for the port.
	Endpoint string `json:"endpoint,omitempty"`
	// Callers lists the rules that clients of the service apply to their requests.
	Callers []Document `json:"callers,omitempty"`
}

// Document is a document that applies to the workload, with a description of its effect.
type Document struct {
	Resource config.Key `json:"resource"`
	At       string     `json:"at,omitempty"`
	Effects  []string   `json:"says,omitempty"`
}

// refusedText is the effect of a policy whose document has never been accepted. The workloads that the policy selects
// deny all requests.
const refusedText = "the document is refused, and no earlier version was accepted: requests to the workloads that it selects are denied (PF0213)"

func newDocument(r *config.Resource, effects ...string) Document {
	d := Document{Resource: r.Key, Effects: effects}
	if r.Denial {
		d.Effects = append([]string{refusedText}, effects...)
	}
	if r.Origin.File != "" {
		d.At = r.Origin.String()
	}
	return d
}

// maxOutbound limits the number of rules in Outbound.
const maxOutbound = 200

// Workload returns the description of a proxy's workload.
func Workload(s *snapshot.Snapshot, p *translate.Proxy) Description {
	d := Description{
		Workload: p.Name, Namespace: p.Namespace, Type: string(p.Type), Address: p.Address.String(), ServiceAccount: p.ServiceAccount, Labels: redact.Labels(p.Labels),
	}
	if p.EnvoyVersion != [3]uint32{} {
		d.Envoy = fmt.Sprintf("%d.%d.%d", p.EnvoyVersion[0], p.EnvoyVersion[1], p.EnvoyVersion[2])
	}
	scope := s.Scope(p.Namespace, p.Labels)
	if p.Type == translate.Router {
		scope = s.GatewayScope(p.Namespace, p.Labels)
		d.addGateways(s, p)
	} else {
		d.addInbound(s, p, scope)
	}
	d.addAccess(s, p)
	d.addOutbound(scope)
	d.addOthers(s, p)
	return d
}

func (d *Description) addInbound(s *snapshot.Snapshot, p *translate.Proxy, scope *snapshot.Scope) {
	handed := map[uint32]string{}
	for _, listener := range scope.Spec().GetIngress() {
		handed[listener.GetPort().GetNumber()] = listener.GetDefaultEndpoint()
	}
	for _, svc := range s.LocalServices(p.Namespace, p.Labels) {
		for _, port := range svc.Ports {
			target := cmp.Or(port.TargetPort, p.PodPorts[port.TargetPortName], port.Number)
			in := Inbound{Service: svc.Hostname, Port: port.Number, Target: target, Protocol: string(port.Protocol),
				MTLS: mtlsText(s.MTLSMode(p.Namespace, p.Labels, target)), Endpoint: handed[target]}
			if by := s.PeerAuthentication(p.Namespace, p.Labels, target); by != nil {
				in.By = by.Key.String()
				if by.Denial {
					in.By += " (the document is refused, PF0213)"
				}
			}
			in.Callers = describeClientRules(scope, svc, port)
			d.Inbound = append(d.Inbound, in)
		}
	}
}

func mtlsText(m snapshot.Mode) string {
	switch m {
	case snapshot.Strict:
		return "mutual TLS only (STRICT)"
	case snapshot.Disable:
		return "plaintext only (DISABLE)"
	}
	return "mutual TLS and plaintext (PERMISSIVE)"
}

// describeClientRules returns the rules that apply when clients in the workload's own namespace call a port of a
// service.
func describeClientRules(scope *snapshot.Scope, svc *registry.Service, port registry.Port) []Document {
	var out []Document
	if vs := scope.VirtualService(svc.Hostname); vs != nil {
		var effects []string
		if port.Protocol.MayBeHTTP() {
			effects = requestText(vs.Spec)
		}
		if !port.Protocol.IsHTTP() {
			effects = append(effects, connectionText(vs.Spec)...)
		}
		if len(effects) > 0 {
			out = append(out, newDocument(vs.Resource, effects...))
		}
	}
	if rule := scope.DestinationRule(svc); rule != nil {
		for _, r := range rule.From {
			out = append(out, newDocument(r, trafficText(rule.Traffic("", port.Number))...))
		}
	}
	return out
}

func (d *Description) addGateways(s *snapshot.Snapshot, p *translate.Proxy) {
	for _, g := range s.Gateways(p.Labels) {
		var effects []string
		for _, server := range g.Spec.GetServers() {
			effects = append(effects, serverText(server))
		}
		d.Gateways = append(d.Gateways, newDocument(g.Resource, effects...))
		for _, vs := range s.VirtualServicesForGateway(g.FullName(), p.Namespace) {
			d.Outbound = append(d.Outbound, newDocument(vs.Resource, slices.Concat(
				[]string{fmt.Sprintf("requests to %s for %s", g.FullName(), strings.Join(vs.Hosts, ", "))}, requestText(vs.Spec), connectionText(vs.Spec))...))
		}
	}
}

func serverText(server *networking.Server) string {
	words := fmt.Sprintf("port %d, %s, for %s", server.GetPort().GetNumber(), server.GetPort().GetProtocol(), strings.Join(server.GetHosts(), ", "))
	if tls := server.GetTls(); tls != nil {
		if config.RedirectsToHTTPS(server) {
			return words + ": redirects to https"
		}
		words += ": TLS " + tls.GetMode().String()
	}
	return words
}

func (d *Description) addOutbound(scope *snapshot.Scope) {
	d.Scope = append(d.Scope, phrase.Count(len(scope.Services), "service"))
	if scope.Sidecar != nil {
		d.Scope = append(d.Scope, fmt.Sprintf("limited by %s (%s)", scope.Sidecar.Key, scope.Sidecar.Origin))
	}
	if d.Type != string(translate.Router) {
		d.addOutboundRules(scope)
	}
	listed := map[*snapshot.DestinationRule]bool{}
	for _, svc := range scope.Services {
		rule := scope.DestinationRule(svc)
		if rule == nil || listed[rule] || len(d.Outbound) >= maxOutbound {
			continue
		}
		listed[rule] = true
		for _, r := range rule.From {
			d.Outbound = append(d.Outbound, newDocument(r, append([]string{"calls to " + rule.Host}, trafficText(rule.Traffic("", 0))...)...))
		}
	}
	if len(d.Outbound) > maxOutbound {
		d.Outbound = d.Outbound[:maxOutbound]
	}
}

// addOutboundRules describes the outbound rules of a sidecar. Gateways do not apply them.
func (d *Description) addOutboundRules(scope *snapshot.Scope) {
	if scope.AllowAny {
		d.Scope = append(d.Scope, "calls to hosts outside the mesh are forwarded (ALLOW_ANY)")
	} else {
		d.Scope = append(d.Scope, "calls to hosts outside the mesh are refused (REGISTRY_ONLY)")
	}
	for _, vs := range scope.VirtualServices {
		var hosts, dead []string
		for _, host := range vs.Hosts {
			svc := scope.ServiceByName(host)
			switch {
			case svc != nil && svc != scope.Service(host):
				dead = append(dead, fmt.Sprintf("%s is an alias of %s, and the rules for the latter apply", host, svc.Hostname))
			case scope.VirtualService(host) == vs:
				hosts = append(hosts, host)
			default:
				dead = append(dead, explainShadowing(scope.VirtualService(host), vs, host))
			}
		}
		if len(hosts) == 0 {
			d.Outbound = append(d.Outbound, newDocument(vs.Resource, "has no effect: "+strings.Join(dead, ", ")))
			continue
		}
		d.Outbound = append(d.Outbound, newDocument(vs.Resource, slices.Concat(
			[]string{"calls to " + strings.Join(hosts, ", ")}, requestText(vs.Spec), connectionText(vs.Spec))...))
	}
}

// explainShadowing returns the reason why the VirtualService vs does not apply to host. inForce is the VirtualService
// that applies to host, or nil.
func explainShadowing(inForce, vs *snapshot.VirtualService, host string) string {
	if inForce == nil {
		return "no rule applies to " + host
	}
	return fmt.Sprintf("%s applies to %s, because it %s", inForce.Key, host, snapshot.ExplainRulePrecedence(inForce, vs))
}

// addOthers lists the remaining documents that select the workload.
func (d *Description) addOthers(s *snapshot.Snapshot, p *translate.Proxy) {
	for r := range s.Rules() {
		own := r.Namespace == p.Namespace
		if (own || r.Namespace == s.Mesh.GetRootNamespace()) && applies(r, own, p.Labels) {
			d.OtherDocuments = append(d.OtherDocuments, newDocument(r, otherText(r)...))
		}
	}
	slices.SortStableFunc(d.OtherDocuments, func(a, b Document) int { return strings.Compare(a.Resource.String(), b.Resource.String()) })
}
