package translate

import "github.com/pilotfish-mesh/pilotfish/controlplane/registry"

// side is the direction of traffic at a proxy.
type side int

const (
	// inboundSide is traffic to the proxy's workload.
	inboundSide side = iota
	// outboundSide is traffic from the proxy's workload.
	outboundSide
	// edgeSide is traffic at a gateway. Its clients are outside the mesh, so the connection's peer address is the
	// client's.
	edgeSide
)

// traffic describes one filter chain: together with the proxy it determines the chain's policies, logs and metrics.
type traffic struct {
	side side
	// port is the workload's port for inbound, the service's for outbound, and the server's at a gateway. It is 0 for
	// ports without a chain of their own.
	port uint32
	// protocol is the declared protocol of the port.
	protocol registry.Protocol
	// mtls: the chain accepts the mesh's mutual TLS.
	mtls bool
	// byName: requests may be forwarded to the host in their Host header.
	byName bool
}
