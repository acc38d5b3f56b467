package mesh

import (
	"context"
	"reflect"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

// udpPollInterval is the interval at which the endpoints of services' UDP ports are polled.
const udpPollInterval = 200 * time.Millisecond

// forwardUDP updates the UDP forwarding rules of every instance when the endpoints of services change, until ctx ends.
// While the control plane is stopped, the last rules remain in effect.
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
		}
	}
}

// udpState contains the ports in an instance's UDP rules, and the error of the last failed update.
type udpState struct {
	ports     []controlplane.DatagramPort
	lastError string
}

func (m *Mesh) updateUDPRules(states map[*instanceRunner]*udpState) {
	known := map[string][]controlplane.DatagramPort{}
	for _, r := range m.snapshotRunners() {
		if r.attachment.ForwardUDP == nil {
			continue
		}
		namespace := r.instance.Workload.Namespace
		ports, ok := known[namespace]
		if !ok {
			if ports, ok = m.currentControlPlane().udpPorts(namespace); !ok {
				return
			}
			known[namespace] = ports
		}
		if states[r] == nil {
			states[r] = &udpState{}
		}
		m.updateInstanceUDP(r, states[r], ports)
	}
}

// updateInstanceUDP updates the rules of one instance if they changed. It retries failed updates and logs each error
// once.
func (m *Mesh) updateInstanceUDP(r *instanceRunner, state *udpState, ports []controlplane.DatagramPort) {
	if state.lastError == "" && len(ports) == len(state.ports) && (len(ports) == 0 || reflect.DeepEqual(ports, state.ports)) {
		return
	}
	err := r.attachment.ForwardUDP(ports)
	if err == nil {
		state.ports, state.lastError = ports, ""
		return
	}
	if why := err.Error(); why != state.lastError {
		state.lastError = why
		m.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: r.instance.Name, Line: "error: forwarding UDP to services: " + why})
	}
}

// udpPorts returns the UDP ports of services that are visible in a namespace. known is false while the control plane is
// stopped.
func (p *controlPlane) udpPorts(namespace string) ([]controlplane.DatagramPort, bool) {
	p.mu.Lock()
	server := p.server
	p.mu.Unlock()
	if server == nil {
		return nil, false
	}
	return server.Datagrams(namespace)
}
