package agent

import (
	"github.com/pilotfish-mesh/pilotfish/dns"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// localTypes are the resources that the control plane has for the agent itself.
func (a *Agent) localTypes() []xdsproxy.LocalType {
	var all []xdsproxy.LocalType
	if a.names != nil {
		all = append(all, xdsproxy.LocalType{TypeURL: dns.NameTableType, Apply: takeNames(a.names)})
	}
	return all
}
