package agent

import (
	"github.com/pilotfish-mesh/pilotfish/dns"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// proxyConfigType is what the control plane has to say of the proxy itself: the roots of other trust domains.
const proxyConfigType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"

// localTypes are the resources that the control plane has for the agent itself.
func (a *Agent) localTypes() []xdsproxy.LocalType {
	var all []xdsproxy.LocalType
	if a.names != nil {
		all = append(all, xdsproxy.LocalType{TypeURL: dns.NameTableType, Apply: takeNames(a.names)})
	}
	if a.Config.ControlPlane.ProxyConfig {
		all = append(all, xdsproxy.LocalType{TypeURL: proxyConfigType, Apply: func(resources [][]byte, _ string) error {
			return trustConfigured(a.certificates, resources)
		}})
	}
	return all
}
