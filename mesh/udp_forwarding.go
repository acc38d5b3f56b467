package mesh

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

// udpPollInterval is the interval at which the endpoints of services' UDP ports are polled.
const udpPollInterval = 200 * time.Millisecond

// forwardUDP updates the UDP forwarding rules of every instance when the endpoints of services change, until ctx ends.
// Instances without a sidecar, and those whose annotations exclude outbound connections from redirection, have rules for
// TCP, too: without these rules, their connections would go to addresses that no process has. While the control plane is
// stopped, the last rules remain in effect.
func (m *Mesh) forwardUDP(ctx context.Context) {
	ticker := time.NewTicker(udpPollInterval)
	defer ticker.Stop()
	states := map[*instanceRunner]*udpState{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			m.updateUDPRules(states)
		case done := <-m.ruleUpdates:
			m.updateUDPRules(states)
			close(done)
		}
	}
}

// awaitRules waits until the forwarding rules contain the endpoints that the control plane knows now, or until ctx or
// the mesh ends. It returns at once if the network needs no such rules.
func (m *Mesh) awaitRules(ctx context.Context) {
	if !slices.ContainsFunc(m.snapshotRunners(), func(r *instanceRunner) bool { return r.attachment.ForwardPorts != nil }) {
		return
	}
	done := make(chan struct{})
	select {
	case m.ruleUpdates <- done:
	case <-ctx.Done():
		return
	case <-m.done:
		return
	}
	select {
	case <-done:
	case <-m.done:
	}
}

// udpState contains the ports in an instance's UDP rules, and the error of the last failed update.
type udpState struct {
	ports     []controlplane.ForwardedPort
	lastError string
}

func (m *Mesh) updateUDPRules(states map[*instanceRunner]*udpState) {
	udp, tcp := map[string][]controlplane.ForwardedPort{}, map[string][]controlplane.ForwardedPort{}
	plane := m.currentControlPlane()
	for _, r := range m.snapshotRunners() {
		if r.attachment.ForwardPorts == nil {
			continue
		}
		workload := r.instance.Workload
		ports, known := plane.forwardedPorts(udp, workload.Namespace, (*controlplane.Server).Datagrams)
		if !known {
			return
		}
		if workload.NoSidecar || excludesOutbound(workload.Annotations) {
			streams, _ := plane.forwardedPorts(tcp, workload.Namespace, (*controlplane.Server).Streams)
			ports = slices.Concat(ports, streams)
		}
		if states[r] == nil {
			states[r] = &udpState{}
		}
		m.updateInstanceUDP(r, states[r], ports)
	}
}

// updateInstanceUDP updates the rules of one instance if they changed. It retries failed updates and logs each error
// once.
func (m *Mesh) updateInstanceUDP(r *instanceRunner, state *udpState, ports []controlplane.ForwardedPort) {
	if state.lastError == "" && len(ports) == len(state.ports) && (len(ports) == 0 || reflect.DeepEqual(ports, state.ports)) {
		return
	}
	err := r.attachment.ForwardPorts(ports)
	if err == nil {
		state.ports, state.lastError = ports, ""
		return
	}
	if why := err.Error(); why != state.lastError {
		state.lastError = why
		m.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: r.instance.Name, Line: "error: installing the rules that forward UDP packets to services: " + why})
	}
}

// excludesOutbound reports whether annotations exclude outbound connections from redirection.
func excludesOutbound(annotations map[string]string) bool {
	for _, name := range []string{"includeOutboundIPRanges", "excludeOutboundIPRanges", "includeOutboundPorts", "excludeOutboundPorts"} {
		if annotations["traffic.sidecar.istio.io/"+name] != "" {
			return true
		}
	}
	return false
}

// forwardedPorts returns the ports of the services that are visible in namespace, from the cache or from list. known
// is false while the control plane is stopped.
func (p *controlPlane) forwardedPorts(cache map[string][]controlplane.ForwardedPort, namespace string, list func(*controlplane.Server, string) ([]controlplane.ForwardedPort, bool)) (ports []controlplane.ForwardedPort, known bool) {
	if ports, known = cache[namespace]; known {
		return ports, true
	}
	p.mu.Lock()
	server := p.server
	p.mu.Unlock()
	if server == nil {
		return nil, false
	}
	if ports, known = list(server, namespace); known {
		cache[namespace] = ports
	}
	return ports, known
}
