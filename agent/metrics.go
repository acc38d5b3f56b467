package agent

import "github.com/pilotfish-mesh/pilotfish/status"

// MetricsConfig says what a scrape of the agent joins to its own metrics.
type MetricsConfig struct {
	// Envoy joins Envoy's statistics.
	Envoy bool
	// Applications are the application's targets.
	Applications []status.Application
	// OnlyLoopback turns away scrapers from other pods and machines.
	OnlyLoopback bool
	// SecurePort and SecureMergedPort give Envoy's statistics, and the joined ones, to clients with a certificate of the
	// mesh; 0 for none.
	SecurePort, SecureMergedPort uint32
	// MaxApplicationBytes is the most that is taken from one target.
	MaxApplicationBytes int64
}

// joinedMetrics is what the status server joins. Envoy is asked at its admin interface: unlike a listener it answers while
// the proxy drains, and it is that of the Envoy that runs now, whichever that is.
func (a *Agent) joinedMetrics() status.Metrics {
	c := a.Config.Metrics
	m := status.Metrics{Applications: c.Applications, OnlyLoopback: c.OnlyLoopback, MaxApplicationBytes: c.MaxApplicationBytes}
	if a.envoy != nil && c.Envoy {
		m.Envoy = func() string {
			if i := a.envoy.instance(); i != nil {
				return "http://" + i.admin.Address() + "/stats/prometheus"
			}
			return ""
		}
	}
	return m
}
