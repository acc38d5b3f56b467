package analysis

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkSidecarEndpoints reports defaultEndpoints of a Sidecar that proxies refuse. A listener with its own address but
// no defaultEndpoint forwards to the same port on loopback, which is checked too.
func (c *snapshotCheck) checkSidecarEndpoints(r *config.Resource, spec *networking.Sidecar) {
	for i, listener := range spec.GetIngress() {
		field, endpoint := fmt.Sprintf("spec.ingress[%d].defaultEndpoint", i), listener.GetDefaultEndpoint()
		if endpoint == "" && (listener.GetBind() != "" || listener.GetCaptureMode() == networking.CaptureMode_NONE) {
			field, endpoint = fmt.Sprintf("spec.ingress[%d].port.number", i), fmt.Sprintf("127.0.0.1:%d", listener.GetPort().GetNumber())
		}
		c.checkDefaultEndpoint(r, field, endpoint, r.Namespace)
	}
}

// checkGatewayEndpoints reports defaultEndpoints of a Gateway that proxies refuse, including gateways in other
// namespaces.
func (c *snapshotCheck) checkGatewayEndpoints(g snapshot.Gateway) {
	at := g.Namespace
	for _, namespace := range c.selectedNamespaces {
		if namespace != g.Namespace {
			at = namespace
		}
	}
	for i, server := range g.Spec.GetServers() {
		c.checkDefaultEndpoint(g.Resource, fmt.Sprintf("spec.servers[%d].defaultEndpoint", i), server.GetDefaultEndpoint(), at)
	}
}

func (c *snapshotCheck) checkDefaultEndpoint(r *config.Resource, field, endpoint, proxyNamespace string) {
	if refusal := c.s.RefuseDefault(endpoint, r.Namespace, proxyNamespace); refusal.Reason != "" {
		c.reportWarning(config.EndpointRefused, r, field, endpoint, refusal.Message(), refusal.Remedy)
	}
}
