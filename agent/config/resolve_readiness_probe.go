package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	networkingv1 "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/internal/probe"
)

// Defaults of a probe in seconds, as in Kubernetes and Istio's agent.
const (
	defaultProbePeriod  = 10
	defaultProbeTimeout = 1
)

// resolveHealthCheck resolves ProxyConfig's readinessProbe. The agent uses it to check the health of an application on
// a VM.
func (r *resolver) resolveHealthCheck() {
	p := r.config.Proxy.GetReadinessProbe()
	if p == nil {
		return
	}
	source := r.merger.source("readiness_probe")
	c, err := readHealthCheck(p, r.defaultApplicationHost())
	if err != nil && r.isInPod() { // in a pod, the kubelet probes the application, so a mistake here must not stop the pod
		r.env.warn("readinessProbe (%s): %v; the agent does not check the application", source, err)
		return
	}
	if err != nil {
		r.addError("readinessProbe (%s): %w", source, err)
		return
	}
	r.config.HealthCheck = c
	r.env.addSetting("healthCheck", fmt.Sprintf("%s within %s every %s", c.Probe, c.Probe.Timeout, c.Period), source)
}

// defaultApplicationHost returns the host for probes that specify none: APP_ADDRESS of the node metadata, or localhost.
func (r *resolver) defaultApplicationHost() string {
	address, _ := r.config.Identity.Metadata["APP_ADDRESS"].(string)
	return cmp.Or(address, "localhost")
}

func readHealthCheck(p *networkingv1.ReadinessProbe, host string) (*HealthCheck, error) {
	for name, n := range map[string]int32{
		"initialDelaySeconds": p.InitialDelaySeconds, "periodSeconds": p.PeriodSeconds, "timeoutSeconds": p.TimeoutSeconds,
		"successThreshold": p.SuccessThreshold, "failureThreshold": p.FailureThreshold,
	} {
		if n < 0 {
			return nil, fmt.Errorf("%s: %d: write a number that is not negative", name, n)
		}
	}
	spec, err := readHealthProbe(p, host)
	if err != nil {
		return nil, err
	}
	spec.Timeout = time.Duration(cmp.Or(p.TimeoutSeconds, defaultProbeTimeout)) * time.Second
	return &HealthCheck{
		Probe:            spec,
		InitialDelay:     time.Duration(p.InitialDelaySeconds) * time.Second,
		Period:           time.Duration(cmp.Or(p.PeriodSeconds, defaultProbePeriod)) * time.Second,
		SuccessThreshold: int(cmp.Or(p.SuccessThreshold, 1)),
		FailureThreshold: int(cmp.Or(p.FailureThreshold, 1)),
	}, nil
}

func readHealthProbe(p *networkingv1.ReadinessProbe, host string) (s probe.Spec, err error) {
	switch m := p.HealthCheckMethod.(type) {
	case *networkingv1.ReadinessProbe_HttpGet:
		h := m.HttpGet
		s.HTTP = &probe.HTTP{Host: cmp.Or(h.GetHost(), host), Path: h.GetPath(), Header: http.Header{}}
		s.HTTP.TLS, err = isHTTPS(h.GetScheme())
		for _, header := range h.GetHttpHeaders() {
			s.HTTP.Header.Add(header.GetName(), header.GetValue())
		}
		return s, errors.Join(err, checkPort(h.GetPort(), &s.HTTP.Port))
	case *networkingv1.ReadinessProbe_TcpSocket:
		s.TCP = &probe.TCP{Host: cmp.Or(m.TcpSocket.GetHost(), host)}
		return s, checkPort(m.TcpSocket.GetPort(), &s.TCP.Port)
	case *networkingv1.ReadinessProbe_Grpc:
		s.GRPC = &probe.GRPC{Host: host, Service: m.Grpc.GetService()}
		return s, checkPort(m.Grpc.GetPort(), &s.GRPC.Port)
	case *networkingv1.ReadinessProbe_Exec:
		s.Exec = &probe.Exec{Command: m.Exec.GetCommand()}
		if len(s.Exec.Command) == 0 {
			err = errors.New("exec has no command: write the command as a list, such as [/usr/bin/check, --quick]")
		}
		return s, err
	}
	return s, errors.New("the probe has no method: write one of httpGet, tcpSocket, grpc and exec")
}

func checkPort(n uint32, port *uint16) error {
	if n < 1 || n > math.MaxUint16 {
		return fmt.Errorf("port: %d: write a number from 1 to 65535", n)
	}
	*port = uint16(n)
	return nil
}
