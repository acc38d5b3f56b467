package agent

import "github.com/pilotfish-mesh/pilotfish/status"

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
