package mesh

import (
	"context"
	"reflect"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

// datagramsInterval is how often it is looked at where services' ports of UDP are served.
const datagramsInterval = 200 * time.Millisecond

// leadDatagrams keeps every instance's network true to where services' ports of UDP are served, until ctx ends. While the
// control plane is away, what it knew last holds.
func (m *Mesh) leadDatagrams(ctx context.Context) {
	ticker := time.NewTicker(datagramsInterval)
	defer ticker.Stop()
	led := map[*runner]*lead{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			m.leadOnce(led)
		}
	}
}

// lead is where an instance's datagrams are led, and why they are not led anew.
type lead struct {
	ports  []controlplane.DatagramPort
	failed string
}

func (m *Mesh) leadOnce(led map[*runner]*lead) {
	known := map[string][]controlplane.DatagramPort{}
	for _, r := range m.snapshotRunners() {
		if r.attached.LeadDatagrams == nil {
			continue
		}
		namespace := r.instance.workload.Namespace
		ports, asked := known[namespace]
		if !asked {
			var ok bool
			if ports, ok = m.currentPlane().datagrams(namespace); !ok {
				return
			}
			known[namespace] = ports
		}
		if led[r] == nil {
			led[r] = &lead{}
		}
		m.leadOne(r, led[r], ports)
	}
}

// leadOne tries again what failed, and tells it once.
func (m *Mesh) leadOne(r *runner, led *lead, ports []controlplane.DatagramPort) {
	if led.failed == "" && len(ports) == len(led.ports) && (len(ports) == 0 || reflect.DeepEqual(ports, led.ports)) {
		return
	}
	err := r.attached.LeadDatagrams(ports)
	if err == nil {
		led.ports, led.failed = ports, ""
		return
	}
	if why := err.Error(); why != led.failed {
		led.failed = why
		m.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: r.instance.Name, Line: "error: leading datagrams to services: " + why})
	}
}

// datagrams are the ports of UDP that a namespace sees; none are known while the control plane is away.
func (p *plane) datagrams(namespace string) ([]controlplane.DatagramPort, bool) {
	p.mu.Lock()
	server := p.server
	p.mu.Unlock()
	if server == nil {
		return nil, false
	}
	return server.Datagrams(namespace)
}
