package agent

import (
	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/status"
)

// mergedMetrics returns the sources that the status server merges into one scrape. Envoy's statistics are read from the
// current Envoy's admin interface, because the admin interface responds even during a drain, unlike Envoy's listeners.
func (a *Agent) mergedMetrics() status.Metrics {
	c := a.Config.Metrics
	m := status.Metrics{Applications: c.Applications, OnlyLoopback: c.OnlyLoopback, MaxApplicationBytes: c.MaxApplicationBytes, AllowReservedNames: c.AllowReservedNames,
		HiddenSuffixes: bootstrap.DrainOnlyStats(a.bootstrap), WithoutEnvoy: !c.Envoy}
	if a.envoy != nil {
		m.Envoy = func() string {
			if i := a.envoy.currentInstance(); i != nil {
				return adminURL(i.admin.Address()) + "/stats/prometheus"
			}
			return ""
		}
	}
	return m
}
