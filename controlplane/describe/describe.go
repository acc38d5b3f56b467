// Package describe says in words what the documents of a mesh mean for one workload: which of them apply to it, who may
// call it and how, where its calls go, and what limits them.
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
)

// Description is all that there is to say of one workload.
type Description struct {
	Workload       string            `json:"workload"`
	Namespace      string            `json:"namespace"`
	Type           string            `json:"type"`
	Address        string            `json:"address"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	Envoy          string            `json:"envoy,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	// Inbound are the services that the workload is a part of.
	Inbound []Inbound `json:"inbound,omitempty"`
	// Policies are who may call it.
	Policies []Document `json:"policies,omitempty"`
	// Access says in words what they come to.
	Access []string `json:"access,omitempty"`
	// Gateways are those that a gateway serves.
	Gateways []Document `json:"gateways,omitempty"`
	// Scope says what it sees of the mesh.
	Scope []string `json:"scope,omitempty"`
	// Outbound are rules for its calls.
	Outbound []Document `json:"outbound,omitempty"`
	// Others are further documents that apply: filters, logs, plugins.
	Others []Document `json:"others,omitempty"`
}

// Inbound is one port of a service that the workload serves.
type Inbound struct {
	Service  string `json:"service"`
	Port     uint32 `json:"port"`
	Target   uint32 `json:"targetPort,omitempty"`
	Protocol string `json:"protocol"`
	// MTLS is what the port accepts, in words, and By the document that says so.
	MTLS string `json:"mtls"`
	By   string `json:"by,omitempty"`
	// Endpoint is where the Sidecar has what comes to the port handed to.
	Endpoint string `json:"endpoint,omitempty"`
	// Callers are the rules that callers of this service follow.
	Callers []Document `json:"callers,omitempty"`
}

// Document is a document that applies, and what it means.
type Document struct {
	Resource config.Key `json:"resource"`
	At       string     `json:"at,omitempty"`
	Says     []string   `json:"says,omitempty"`
}

func document(r *config.Resource, says ...string) Document {
	d := Document{Resource: r.Key, Says: says}
	if r.Origin.File != "" {
		d.At = r.Origin.String()
	}
	return d
}

// maxOutbound is how many rules for calls are listed.
const maxOutbound = 200

// Workload describes the workload of a proxy.
func Workload(s *snapshot.Snapshot, p *translate.Proxy) Description {
	d := Description{
		Workload: p.Name, Namespace: p.Namespace, Type: string(p.Type), Address: p.Address.String(), ServiceAccount: p.ServiceAccount, Labels: p.Labels,
	}
	if p.EnvoyVersion != [3]uint32{} {
		d.Envoy = fmt.Sprintf("%d.%d.%d", p.EnvoyVersion[0], p.EnvoyVersion[1], p.EnvoyVersion[2])
	}
	scope := s.Scope(p.Namespace, p.Labels)
	if p.Type == translate.Router {
		scope = s.GatewayScope(p.Namespace, p.Labels)
		d.gateways(s, p)
	} else {
		d.inbound(s, p, scope)
	}
	d.access(s, p)
	d.outbound(scope)
	d.others(s, p)
	return d
}

func (d *Description) inbound(s *snapshot.Snapshot, p *translate.Proxy, scope *snapshot.Scope) {
	handed := map[uint32]string{}
	for _, listener := range scope.Spec().GetIngress() {
		handed[listener.GetPort().GetNumber()] = listener.GetDefaultEndpoint()
	}
	for _, svc := range s.LocalServices(p.Namespace, p.Labels) {
		for _, port := range svc.Ports {
			target := cmp.Or(port.TargetPort, p.PodPorts[port.TargetPortName], port.Number)
			in := Inbound{Service: svc.Hostname, Port: port.Number, Target: target, Protocol: string(port.Protocol),
				MTLS: accepts(s.MTLSMode(p.Namespace, p.Labels, target)), Endpoint: handed[target]}
			if by := s.PeerAuthentication(p.Namespace, p.Labels, target); by != nil {
				in.By = by.Key.String()
			}
			in.Callers = callers(scope, svc, port)
			d.Inbound = append(d.Inbound, in)
		}
	}
}

func accepts(m snapshot.Mode) string {
	switch m {
	case snapshot.Strict:
		return "mutual TLS only (STRICT)"
	case snapshot.Disable:
		return "plaintext only (DISABLE)"
	}
	return "mutual TLS and plaintext (PERMISSIVE)"
}

// callers are the rules that those follow who call a service from the workload's own namespace.
func callers(scope *snapshot.Scope, svc *registry.Service, port registry.Port) []Document {
	var out []Document
	if vs := scope.VirtualService(svc.Hostname); vs != nil {
		var says []string
		if port.Protocol.MayBeHTTP() {
			says = requestWords(vs.Spec)
		}
		if !port.Protocol.IsHTTP() {
			says = append(says, connectionWords(vs.Spec)...)
		}
		if len(says) > 0 {
			out = append(out, document(vs.Resource, says...))
		}
	}
	if rule := scope.DestinationRule(svc); rule != nil {
		for _, r := range rule.From {
			out = append(out, document(r, trafficWords(rule.Traffic("", port.Number))...))
		}
	}
	return out
}

func (d *Description) gateways(s *snapshot.Snapshot, p *translate.Proxy) {
	for _, g := range s.Gateways(p.Labels) {
		var says []string
		for _, server := range g.Spec.GetServers() {
			says = append(says, serverWords(server))
		}
		d.Gateways = append(d.Gateways, document(g.Resource, says...))
		for _, vs := range s.VirtualServicesForGateway(g.FullName(), p.Namespace) {
			d.Outbound = append(d.Outbound, document(vs.Resource, slices.Concat(
				[]string{fmt.Sprintf("what comes to %s for %s", g.FullName(), strings.Join(vs.Hosts, ", "))}, requestWords(vs.Spec), connectionWords(vs.Spec))...))
		}
	}
}

func serverWords(server *networking.Server) string {
	words := fmt.Sprintf("port %d, %s, for %s", server.GetPort().GetNumber(), server.GetPort().GetProtocol(), strings.Join(server.GetHosts(), ", "))
	if tls := server.GetTls(); tls != nil {
		if tls.GetHttpsRedirect() {
			return words + ": redirects to https"
		}
		words += ": TLS " + tls.GetMode().String()
	}
	return words
}

func (d *Description) outbound(scope *snapshot.Scope) {
	d.Scope = append(d.Scope, fmt.Sprintf("it sees %d services", len(scope.Services)))
	if scope.Sidecar != nil {
		d.Scope = append(d.Scope, fmt.Sprintf("as %s, at %s, says", scope.Sidecar.Key, scope.Sidecar.Origin))
	}
	if d.Type != string(translate.Router) {
		d.calls(scope)
	}
	told := map[*snapshot.DestinationRule]bool{}
	for _, svc := range scope.Services {
		rule := scope.DestinationRule(svc)
		if rule == nil || told[rule] || len(d.Outbound) >= maxOutbound {
			continue
		}
		told[rule] = true
		for _, r := range rule.From {
			d.Outbound = append(d.Outbound, document(r, append([]string{"calls to " + rule.Host}, trafficWords(rule.Traffic("", 0))...)...))
		}
	}
	if len(d.Outbound) > maxOutbound {
		d.Outbound = d.Outbound[:maxOutbound]
	}
}

// calls says what a sidecar does with calls, by the rules for sidecars, which gateways do not follow.
func (d *Description) calls(scope *snapshot.Scope) {
	if scope.AllowAny {
		d.Scope = append(d.Scope, "calls to hosts that the mesh does not know go out (ALLOW_ANY)")
	} else {
		d.Scope = append(d.Scope, "calls to hosts that the mesh does not know are refused (REGISTRY_ONLY)")
	}
	for _, vs := range scope.VirtualServices {
		var hosts, dead []string
		for _, host := range vs.Hosts {
			svc := scope.Named(host)
			switch {
			case svc != nil && svc != scope.Service(host):
				dead = append(dead, fmt.Sprintf("%s is another name of %s, whose rules count", host, svc.Hostname))
			case scope.VirtualService(host) == vs:
				hosts = append(hosts, host)
			default:
				dead = append(dead, "older rules have "+host)
			}
		}
		if len(hosts) == 0 {
			d.Outbound = append(d.Outbound, document(vs.Resource, "has no effect: "+strings.Join(dead, ", ")))
			continue
		}
		d.Outbound = append(d.Outbound, document(vs.Resource, slices.Concat(
			[]string{"calls to " + strings.Join(hosts, ", ")}, requestWords(vs.Spec), connectionWords(vs.Spec))...))
	}
}

// others lists what applies to the workload by a selector and is said nowhere else.
func (d *Description) others(s *snapshot.Snapshot, p *translate.Proxy) {
	for r := range s.Rules() {
		own := r.Namespace == p.Namespace
		if (own || r.Namespace == s.Mesh.GetRootNamespace()) && applies(r, own, p.Labels) {
			d.Others = append(d.Others, document(r, otherWords(r)...))
		}
	}
	slices.SortStableFunc(d.Others, func(a, b Document) int { return strings.Compare(a.Resource.String(), b.Resource.String()) })
}
