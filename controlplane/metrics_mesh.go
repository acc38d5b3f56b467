package controlplane

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// meshMetrics tells of the mesh as it is at the moment of a scrape, by istiod's names where it has the same thing.
type meshMetrics struct {
	latest   func() *snapshot.Snapshot
	findings func() map[finding]int
	started  time.Time
}

// finding is what findings are counted by.
type finding struct {
	code     config.Code
	severity config.Severity
}

var (
	servicesDesc   = prometheus.NewDesc("pilot_services", "Services that are known.", nil, nil)
	rulesDesc      = prometheus.NewDesc("pilot_virt_services", "VirtualServices in force.", nil, nil)
	noEndpoints    = prometheus.NewDesc("pilot_eds_no_instances", "Ports of services that have no endpoint.", nil, nil)
	duplicateHosts = prometheus.NewDesc("pilot_vservice_dup_domain", "Hosts of VirtualServices that an older one has (PF0201).", nil, nil)
	duplicateSets  = prometheus.NewDesc("pilot_destrule_subsets", "Subsets of DestinationRules that an older one has for the same host (PF0209).", nil, nil)
	sameAddresses  = prometheus.NewDesc("pilot_conflict_outbound_listener_tcp_over_current_tcp", "Ports of services at an address of another one (PF0207).", nil, nil)
	samePorts      = prometheus.NewDesc("pilot_conflict_inbound_listener", "Ports of workloads that two services list with different protocols (PF0212).", nil, nil)
	findingsDesc   = prometheus.NewDesc("pilotfish_findings", "What is wrong with the documents, by code and severity.", []string{"code", "severity"}, nil)
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
	counts := m.findings()
	gauge(duplicateHosts, counts[finding{config.HostTaken, config.Warning}])
	gauge(duplicateSets, counts[finding{config.DuplicateSubset, config.Warning}])
	gauge(sameAddresses, counts[finding{config.SharedAddress, config.Warning}])
	gauge(samePorts, counts[finding{config.PortProtocols, config.Warning}])
	for f, n := range counts {
		gauge(findingsDesc, n, string(f.code), string(f.severity))
	}
}

// triggered counts what pushes were made for, by istiod's names of reasons: a push may have several.
func (m *metrics) triggered(change snapshot.Change) {
	for reason, is := range map[string]bool{
		"global": change.Full, "config": len(change.Resources) > 0, "service": len(change.Services) > 0, "endpoint": len(change.Endpoints) > 0,
	} {
		if is {
			m.triggers.WithLabelValues(reason).Inc()
		}
	}
}
