package mesh

import "strings"

// logRejections logs configuration that a sidecar rejected, if there is a known remedy. The sidecar's own log contains
// all rejections. logged contains the last message for each instance.
func (m *Mesh) logRejections(logged map[string]string) {
	p := m.currentControlPlane()
	if p == nil {
		return
	}
	_, full := p.status()
	for _, r := range m.snapshotRunners() {
		name, message := r.instance.Name, ""
		for _, rejection := range configStatus(r.instance, full.Clients, true).Rejected {
			if rejection.Remedy != "" {
				message = "the sidecar rejected configuration: " + strings.TrimSpace(rejection.Reason) + ": " + rejection.Remedy
			}
		}
		if message != "" && message != logged[name] {
			m.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: name, Line: message})
		}
		logged[name] = message
	}
}
