package mesh

import "strings"

// tellRejections tells of configuration that a sidecar rejected where it can be told what to do about it. That it did is
// in the logs anyway. told is what was told of each instance last.
func (m *Mesh) tellRejections(told map[string]string) {
	p := m.currentPlane()
	if p == nil {
		return
	}
	_, full := p.status()
	for _, r := range m.snapshotRunners() {
		name, news := r.instance.Name, ""
		for _, rejection := range configStatus(r.instance, full.Clients, true).Rejected {
			if rejection.Remedy != "" {
				news = "its sidecar rejected configuration: " + strings.TrimSpace(rejection.Reason) + ": " + rejection.Remedy
			}
		}
		if news != "" && news != told[name] {
			m.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: name, Line: news})
		}
		told[name] = news
	}
}
