package translate

import "github.com/pilotfish-mesh/pilotfish/controlplane/registry"

// side is where traffic passes a proxy.
type side int

const (
	// inboundSide: on its way into the proxy's workload.
	inboundSide side = iota
	// outboundSide: on its way out of it.
	outboundSide
	// edgeSide: at a gateway, whose callers are not of the mesh: their address is that of their connection.
	edgeSide
)

// traffic is what passes one filter chain: what policies, logs and metrics of a chain depend on beside the proxy.
type traffic struct {
	side side
	// port is the workload's port on the inbound side, the service's on the outbound side, and the server's at a gateway;
	// 0 for all that have no chain of their own.
	port uint32
	// protocol is what the port speaks, as far as that is declared.
	protocol registry.Protocol
	// mtls: the chain takes mutual TLS of the mesh.
	mtls bool
	// byName: requests may go to services whose endpoints only their Host header names.
	byName bool
}
