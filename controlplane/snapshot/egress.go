package snapshot

import (
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// EgressListener is a listener of a Sidecar for one port.
type EgressListener struct {
	*networking.IstioEgressListener
	hosts egressHosts
}

// Bound says whether it listens by itself, and does not take over what is captured.
func (l EgressListener) Bound() bool {
	return l.GetBind() != "" || l.GetCaptureMode() == networking.CaptureMode_NONE
}

// SeesFrom says whether callers of one of the Sidecar's listeners see a service.
func (sc *Scope) SeesFrom(l EgressListener, svc *registry.Service) bool {
	return sc.seesAmong(l.hosts, svc)
}

// seeAny says whether the hosts are for a service, by whichever of its names.
func (e egressHosts) seeAny(svc *registry.Service) bool {
	for known := range svc.WithAliases() {
		if e.see(known.Namespace, known.Hostname) {
			return true
		}
	}
	return false
}

// seesAmong says whether one of the names of a service is among the hosts.
func (sc *Scope) seesAmong(hosts egressHosts, svc *registry.Service) bool {
	for known := range sc.Names(svc) {
		if hosts.see(known.Namespace, known.Hostname) {
			return true
		}
	}
	return false
}

// perPort is what the egress listeners of a Sidecar let its workloads see by port.
type perPort struct {
	listeners []EgressListener // those with a port
	captured  map[uint32]egressHosts
	others    egressHosts // of ports that no listener has
}

// newPerPort reads the listeners; nil when none has a port: then all that is seen is seen at every port.
func newPerPort(spec *networking.Sidecar, namespace string) *perPort {
	p := &perPort{captured: map[uint32]egressHosts{}}
	for _, listener := range spec.GetEgress() {
		one := newEgress(&networking.Sidecar{Egress: []*networking.IstioEgressListener{listener}}, namespace)
		number := listener.GetPort().GetNumber()
		if number == 0 {
			p.others.hosts = append(p.others.hosts, one.hosts...)
			continue
		}
		l := EgressListener{listener, one}
		p.listeners = append(p.listeners, l)
		if !l.Bound() {
			at := p.captured[number]
			at.hosts = append(at.hosts, one.hosts...)
			p.captured[number] = at
		}
	}
	if len(p.listeners) == 0 {
		return nil
	}
	return p
}

// SeesAt says whether captured calls to a port of a service, which is seen, are for it: the Sidecar may have listeners for
// some ports, which say who is seen there.
func (sc *Scope) SeesAt(svc *registry.Service, port uint32) bool {
	if sc.perPort == nil {
		return true
	}
	if !sc.seesAmong(sc.egress, svc) { // rules lead there
		return true
	}
	hosts, ok := sc.perPort.captured[port]
	if !ok {
		hosts = sc.perPort.others
	}
	return sc.seesAmong(hosts, svc)
}

// EgressListeners are those of the Sidecar's listeners that have a port.
func (sc *Scope) EgressListeners() []EgressListener {
	if sc.perPort == nil {
		return nil
	}
	return sc.perPort.listeners
}

// Spec is what the Sidecar says; nil when there is none.
func (sc *Scope) Spec() *networking.Sidecar {
	if sc.Sidecar == nil {
		return nil
	}
	return sc.Sidecar.Spec.(*networking.Sidecar)
}

// EgressProxy is where calls to unknown hosts go, and the host of it as a full name; nil when they go where they want.
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
