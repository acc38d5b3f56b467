package registration

import "github.com/prometheus/client_golang/prometheus"

// metrics holds the counters, which have istiod's names.
type metrics struct{ successes, updates, deletes, errors prometheus.Counter }

func newMetrics(registerer prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		if registerer != nil {
			registerer.MustRegister(c)
		}
		return c
	}
	return &metrics{
		successes: counter("auto_registration_success_total", "Workloads that were registered when they connected."),
		updates:   counter("auto_registration_updates_total", "Connections of workloads that were registered already."),
		deletes:   counter("auto_registration_deletes_total", "Registered workloads that went and were struck out."),
		errors:    counter("auto_registration_errors_total", "Workloads that could not be registered."),
	}
}
