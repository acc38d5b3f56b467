package ca

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics contains the CA's metrics. A metric has the name of Istio's CA if that has an equivalent one, so that
// existing dashboards and alerts work.
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
		requests:        counter("citadel_server_csr_count", "Certificate requests."),
		signed:          counter("citadel_server_success_cert_issuance_count", "Certificates signed for workloads."),
		unauthenticated: counter("citadel_server_authentication_failure_count", "Certificate requests of clients that could not be authenticated."),
		malformed:       counter("citadel_server_csr_parsing_err_count", "Certificate requests with a malformed CSR or a weak key."),
		otherIdentity:   counter("pilotfish_ca_foreign_identity_count", "Certificate requests for an identity that is not the client's."),
		failed:          counter("citadel_server_csr_sign_err_count", "Valid certificate requests that the authority could not sign."),
	}
	end := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "citadel_server_root_cert_expiry_timestamp", Help: "Expiry of the root certificate, in seconds since 1970.",
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
