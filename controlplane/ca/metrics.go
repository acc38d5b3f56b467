package ca

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have the names of Istio's CA metrics where these exist, so that existing dashboards and alerts work.
type metrics struct {
	requests, signed, unauthenticated, malformed, otherIdentity, failed prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer, rootEnd func() time.Time) (*metrics, error) {
	var all []prometheus.Collector
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		all = append(all, c)
		return c
	}
	m := &metrics{
		requests:        counter("citadel_server_csr_count", "Requests for a certificate."),
		signed:          counter("citadel_server_success_cert_issuance_count", "Certificates signed for workloads."),
		unauthenticated: counter("citadel_server_authentication_failure_count", "Requests whose caller did not prove who it is."),
		malformed:       counter("citadel_server_csr_parsing_err_count", "Requests whose CSR was malformed or had a weak key."),
		otherIdentity:   counter("pilotfish_ca_foreign_identity_count", "Requests for another identity than the caller's own."),
		failed:          counter("citadel_server_csr_sign_err_count", "Requests that were good and could not be signed."),
	}
	end := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "citadel_server_root_cert_expiry_timestamp", Help: "When the root certificate ends, in seconds since 1970.",
	}, func() float64 { return float64(rootEnd().Unix()) })
	return m, register(registerer, append(all, end))
}

func register(registerer prometheus.Registerer, all []prometheus.Collector) error {
	if registerer == nil {
		return nil
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, registerer.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("registering the certificate authority's metrics: %w", err)
	}
	return nil
}
