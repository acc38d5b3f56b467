package agent

import (
	"github.com/pilotfish-mesh/pilotfish/dns"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// proxyConfigType is the resource type of the proxy's own configuration. The agent reads the roots of other trust
// domains from it.
const proxyConfigType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"

// revocationType is the resource type of the deny list: certificate revocation lists with the roots that they cover.
// Only pilotfish's control plane serves it.
const revocationType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext"

// localTypes returns the resource types to which the agent subscribes for itself.
func (a *Agent) localTypes() []xdsproxy.LocalType {
	var all []xdsproxy.LocalType
	if a.dns != nil {
		all = append(all, xdsproxy.LocalType{TypeURL: dns.NameTableType, Apply: applyNameTable(a.dns)})
	}
	all = append(all, xdsproxy.LocalType{TypeURL: revocationType, Offered: true, Apply: func(resources [][]byte, _ string) error {
		return applyDenyList(a.certificates, resources)
	}})
	if a.Config.ControlPlane.ProxyConfig {
		all = append(all, xdsproxy.LocalType{TypeURL: proxyConfigType, Apply: func(resources [][]byte, _ string) error {
			return applyProxyConfig(a.certificates, resources)
		}})
	}
	return all
}
