package analysis

import (
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// checkGatewayWorkloads reports a Gateway that selects no workload. It also reports servers whose port is missing in
// the Services of the Gateway's workloads.
func (c *snapshotCheck) checkGatewayWorkloads(g snapshot.Gateway) {
	selector := g.Spec.GetSelector()
	if len(selector) == 0 {
		return // it selects all workloads
	}
	services, known := c.gatewayServices(selector)
	switch {
	case len(services) > 0:
		c.checkExposedPorts(g, services)
	case !known:
		c.reportGatewayWithoutWorkloads(g)
	}
}

// gatewayServices returns the Services of the workloads that a Gateway selects. known reports whether any such workload
// is known. If known is false, the result contains the Services without endpoints that may select such workloads.
func (c *snapshotCheck) gatewayServices(selector map[string]string) (services []*registry.Service, known bool) {
	for _, namespace := range c.selectedNamespaces {
		workloads, _ := c.s.Registry.Workloads(namespace, selector)
		for _, w := range workloads {
			services = append(services, c.servicesSelecting(namespace, registry.WorkloadLabels(w))...)
		}
	}
	for _, w := range c.s.PlatformWorkloads() {
		if snapshot.Selects(selector, w.Labels) {
			services, known = append(services, c.servicesSelecting(w.Namespace, w.Labels)...), true
		}
	}
	if known || len(c.selectedNamespaces) > 0 {
		return services, true
	}
	for _, namespace := range c.namespacesOf("", true) {
		for _, svc := range c.servicesOf(namespace, selector) {
			if len(c.s.Registry.Endpoints(svc)) == 0 {
				services = append(services, svc)
			}
		}
	}
	return services, false
}

// servicesSelecting returns the Services of a namespace that select a workload with the labels.
func (c *snapshotCheck) servicesSelecting(namespace string, labels map[string]string) []*registry.Service {
	return slices.DeleteFunc(slices.Clone(c.selecting[namespace]), func(svc *registry.Service) bool { return !snapshot.Selects(svc.Selector, labels) })
}

// reportGatewayWithoutWorkloads reports a Gateway that selects no known workload. The severity is warning if all
// workloads are known, and info if some are. If none are known, there is no finding.
func (c *snapshotCheck) reportGatewayWithoutWorkloads(g snapshot.Gateway) {
	severity := config.Info
	switch {
	case c.s.Inputs().StartsProxies || len(c.s.PlatformWorkloads()) > 0:
		severity = config.Warning
	case !c.anyWorkload():
		return
	}
	c.report(config.SelectsNothing, severity, g.Resource, "spec.selector", config.FormatLabels(g.Spec.GetSelector()),
		"no known workload has these labels: no proxy serves the Gateway", "correct the labels, or start a gateway with them")
}

func (c *snapshotCheck) anyWorkload() bool {
	return slices.ContainsFunc(c.s.Registry.Namespaces(), func(namespace string) bool {
		_, known := c.s.Registry.Workloads(namespace, nil)
		return known
	})
}

// checkExposedPorts reports servers whose port none of the services has. In a local mesh there is no finding, because
// it publishes the ports of gateways without a Service.
func (c *snapshotCheck) checkExposedPorts(g snapshot.Gateway, services []*registry.Service) {
	if c.s.Inputs().StartsProxies {
		return
	}
	for i, server := range g.Spec.GetServers() {
		if number := server.GetPort().GetNumber(); !slices.ContainsFunc(services, func(svc *registry.Service) bool { return exposes(svc, number) }) {
			c.reportWarning(config.PortNotExposed, g.Resource, fmt.Sprintf("spec.servers[%d].port.number", i), fmt.Sprint(number),
				"no Service of the Gateway's workloads has this port: clients that use the Service cannot reach the server",
				"add the port to "+phrase.ListFirst(serviceNames(services), 4)+", or correct the port")
		}
	}
}

// exposes reports whether a Service may forward connections to the port number of a Gateway's server.
func exposes(svc *registry.Service, number uint32) bool {
	return slices.ContainsFunc(svc.Ports, func(p registry.Port) bool {
		return p.Number == number || p.TargetPort == number || p.TargetPortName != ""
	})
}

func serviceNames(services []*registry.Service) []string {
	var names []string
	for _, svc := range services {
		names = append(names, svc.Source.String())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// checkSharedCertificates reports HTTPS servers on one port that have the same certificate but different hosts. A
// client may send requests for all these hosts on one HTTP/2 connection, which belongs to only one of the servers.
func (c *snapshotCheck) checkSharedCertificates(servers []serverHost) {
	byCertificate := map[string][]serverHost{}
	for _, s := range servers {
		id := certificateID(s.spec())
		if id == "" {
			continue
		}
		for _, first := range byCertificate[id] {
			if mayShareProxies(first.gateway, s.gateway) && !slices.Equal(first.spec().GetHosts(), s.spec().GetHosts()) {
				c.reportWarning(config.CertificateShared, s.gateway.Resource, s.path()+".tls", "",
					fmt.Sprintf("the server %s of %s has the same certificate on this port: a client that reuses its HTTP/2 connection for a host of the other server receives a 404",
						first.path(), describeResource(first.gateway.Resource)), "put the hosts into one server, or use a certificate for each host")
				break
			}
		}
		if len(byCertificate[id]) < 16 {
			byCertificate[id] = append(byCertificate[id], s)
		}
	}
}

// certificateID returns a text that identifies the certificate of an HTTPS server. It returns "" for other servers.
func certificateID(s *networking.Server) string {
	tls := s.GetTls()
	switch tls.GetMode() {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
	default:
		return ""
	}
	if s.GetPort().GetProtocol() != "HTTPS" {
		return ""
	}
	if names := tls.GetCredentialNames(); len(names) > 0 {
		return "secret " + phrase.List(names)
	}
	if name := tls.GetCredentialName(); name != "" {
		return "secret " + name
	}
	if file := tls.GetServerCertificate(); file != "" {
		return "file " + file
	}
	return ""
}
