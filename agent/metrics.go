package agent

import "github.com/pilotfish-mesh/pilotfish/status"

// MetricsConfig configures what a scrape merges with the agent's own metrics.
type MetricsConfig struct {
	// Envoy includes Envoy's statistics.
	Envoy bool
	// Applications are the scrape targets of the application.
	Applications []status.Application
	// OnlyLoopback rejects scrapes from other pods and machines.
	OnlyLoopback bool
	// SecurePort and SecureMergedPort serve Envoy's statistics, and the merged ones, to clients with a certificate of
	// the mesh; 0 disables them.
	SecurePort, SecureMergedPort uint32
	// MaxApplicationBytes limits the response of one target.
	MaxApplicationBytes int64
	// AllowReservedNames permits series of applications with the prefixes envoy_, istio_ and pilotfish_.
	AllowReservedNames bool
}

// mergedMetrics returns the sources of a scrape. Envoy's statistics are read from the admin interface of the current
// Envoy, which answers during a drain, unlike a listener.
func (a *Agent) mergedMetrics() status.Metrics {
	c := a.Config.Metrics
	m := status.Metrics{Applications: c.Applications, OnlyLoopback: c.OnlyLoopback, MaxApplicationBytes: c.MaxApplicationBytes, AllowReservedNames: c.AllowReservedNames}
	if a.envoy != nil && c.Envoy {
		m.Envoy = func() string {
			if i := a.envoy.currentInstance(); i != nil {
				return adminURL(i.admin.Address()) + "/stats/prometheus"
			}
			return ""
		}
	}
	return m
}
