package controlplane

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// meshMetrics collects the state of the mesh at each scrape. A metric has istiod's name if istiod has an equivalent
// one.
type meshMetrics struct {
	latest  func() *snapshot.Snapshot
	counts  func() map[findingKey]int
	started time.Time
}

// findingKey is the key by which findings are counted.
type findingKey struct {
	code     config.Code
	severity config.Severity
}

var (
	servicesDesc   = prometheus.NewDesc("pilot_services", "Known services.", nil, nil)
	rulesDesc      = prometheus.NewDesc("pilot_virt_services", "VirtualServices in force.", nil, nil)
	noEndpoints    = prometheus.NewDesc("pilot_eds_no_instances", "Service ports without endpoints.", nil, nil)
	duplicateHosts = prometheus.NewDesc("pilot_vservice_dup_domain", "Hosts of VirtualServices for which an older VirtualService takes precedence (PF0201).", nil, nil)
	duplicateSets  = prometheus.NewDesc("pilot_destrule_subsets", "Subsets of DestinationRules for which an older DestinationRule of the same host takes precedence (PF0209).", nil, nil)
	sameAddresses  = prometheus.NewDesc("pilot_conflict_outbound_listener_tcp_over_current_tcp", "Service ports with the same address as another service (PF0207).", nil, nil)
	samePorts      = prometheus.NewDesc("pilot_conflict_inbound_listener", "Ports of workloads that two services list with different protocols (PF0212).", nil, nil)
	findingsDesc   = prometheus.NewDesc("pilotfish_findings", "Findings of the documents, by code and severity.", []string{"code", "severity"}, nil)
	uptimeDesc     = prometheus.NewDesc("istiod_uptime_seconds", "Seconds since the control plane was started.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *meshMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{servicesDesc, rulesDesc, noEndpoints, duplicateHosts, duplicateSets, sameAddresses, samePorts, findingsDesc, uptimeDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *meshMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	out <- prometheus.MustNewConstMetric(uptimeDesc, prometheus.GaugeValue, time.Since(m.started).Seconds())
	latest := m.latest()
	if latest == nil {
		return
	}
	gauge(servicesDesc, len(latest.Registry.Services))
	gauge(rulesDesc, latest.Count(config.VirtualService))
	gauge(noEndpoints, latest.PortsWithoutEndpoints())
	counts := m.counts()
	gauge(duplicateHosts, counts[findingKey{config.HostConflict, config.Warning}])
	gauge(duplicateSets, counts[findingKey{config.DuplicateSubset, config.Warning}])
	gauge(sameAddresses, counts[findingKey{config.SharedAddress, config.Warning}])
	gauge(samePorts, counts[findingKey{config.PortProtocols, config.Warning}])
	for f, n := range counts {
		gauge(findingsDesc, n, string(f.code), string(f.severity))
	}
}

// countTriggers counts the reasons of a push by istiod's names. A push may have several reasons.
func (m *metrics) countTriggers(change snapshot.Change) {
	for reason, is := range map[string]bool{
		"global": change.Full, "config": len(change.Resources) > 0, "service": len(change.Services) > 0, "endpoint": len(change.Endpoints) > 0,
	} {
		if is {
			m.triggers.WithLabelValues(reason).Inc()
		}
	}
}
