package snapshot

import (
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// EgressListener is an egress listener of a Sidecar that specifies a port.
type EgressListener struct {
	*networking.IstioEgressListener
	hosts EgressHosts
}

// IsBound reports whether the listener has its own socket. Otherwise it receives redirected traffic.
func (l EgressListener) IsBound() bool {
	return l.GetBind() != "" || l.GetCaptureMode() == networking.CaptureMode_NONE
}

// IsVisibleFrom reports whether a service is visible through one of the Sidecar's listeners.
func (sc *Scope) IsVisibleFrom(l EgressListener, svc *registry.Service) bool {
	return sc.isAmong(l.hosts, svc)
}

// ContainsService reports whether the imported hosts include the service's hostname or one of its aliases.
func (e EgressHosts) ContainsService(svc *registry.Service) bool {
	for known := range svc.WithAliases() {
		if e.Contains(known.Namespace, known.Hostname) {
			return true
		}
	}
	return false
}

// isAmong reports whether hosts contains a name of the service that is visible in the scope.
func (sc *Scope) isAmong(hosts EgressHosts, svc *registry.Service) bool {
	for known := range sc.VisibleNames(svc) {
		if hosts.Contains(known.Namespace, known.Hostname) {
			return true
		}
	}
	return false
}

// portEgress contains, for each port, the hosts that the egress listeners of a Sidecar import.
type portEgress struct {
	listeners []EgressListener // listeners with a port
	captured  map[uint32]EgressHosts
	others    EgressHosts // hosts for ports without a listener
}

// newPortEgress returns the hosts by port. It returns nil if no listener has a port, because the visibility of services
// then does not depend on the port.
func newPortEgress(spec *networking.Sidecar, namespace string) *portEgress {
	p := &portEgress{captured: map[uint32]EgressHosts{}}
	for _, listener := range spec.GetEgress() {
		one := NewEgressHosts(&networking.Sidecar{Egress: []*networking.IstioEgressListener{listener}}, namespace)
		number := listener.GetPort().GetNumber()
		if number == 0 {
			p.others.listeners = append(p.others.listeners, one.listeners...)
			continue
		}
		l := EgressListener{listener, one}
		p.listeners = append(p.listeners, l)
		if !l.IsBound() {
			at := p.captured[number]
			at.listeners = append(at.listeners, one.listeners...)
			p.captured[number] = at
		}
	}
	if len(p.listeners) == 0 {
		return nil
	}
	return p
}

// IsVisibleAtPort reports whether redirected requests to a port of a visible service reach that service. If a Sidecar
// has a listener for the port, only the services that this listener imports are visible at the port.
func (sc *Scope) IsVisibleAtPort(svc *registry.Service, port uint32) bool {
	if sc.perPort == nil {
		return true
	}
	if !sc.isAmong(sc.egress, svc) { // the service is visible only as a destination of rules
		return true
	}
	hosts, ok := sc.perPort.captured[port]
	if !ok {
		hosts = sc.perPort.others
	}
	return sc.isAmong(hosts, svc)
}

// EgressListeners returns the Sidecar's listeners with a port.
func (sc *Scope) EgressListeners() []EgressListener {
	if sc.perPort == nil {
		return nil
	}
	return sc.perPort.listeners
}

// Spec returns the spec of the Sidecar, or nil if no Sidecar limits the scope.
func (sc *Scope) Spec() *networking.Sidecar {
	if sc.Sidecar == nil {
		return nil
	}
	return sc.Sidecar.Spec.(*networking.Sidecar)
}

// EgressProxy returns the destination to which the Sidecar sends requests for unknown hosts, and the full name of its
// host. It returns nil if the Sidecar specifies none.
func (sc *Scope) EgressProxy() (*networking.Destination, string) {
	proxy := sc.Spec().GetOutboundTrafficPolicy().GetEgressProxy()
	if proxy == nil || !sc.AllowAny {
		return nil, ""
	}
	host := sc.resolve(proxy.GetHost(), sc.Sidecar.Namespace)
	if svc := sc.aliases[host]; svc != nil && sc.services[host] == nil {
		host = svc.Hostname
	}
	return proxy, host
}
