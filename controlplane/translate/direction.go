package translate

import "github.com/pilotfish-mesh/pilotfish/controlplane/registry"

// side is the direction of traffic at a proxy.
type side int

const (
	// inboundSide is traffic to the proxy's workload.
	inboundSide side = iota
	// outboundSide is traffic from the proxy's workload.
	outboundSide
	// edgeSide is traffic at a gateway. Its clients are outside the mesh, and a connection's peer address is the
	// address of such a client.
	edgeSide
)

// traffic describes the traffic of one filter chain. Together with the proxy it determines the policies, logs and
// metrics of the chain.
type traffic struct {
	side side
	// port is the workload's port for inbound traffic, the service's port for outbound traffic, or the server's port at
	// a gateway. It is 0 for the ports that share the catch-all chain.
	port uint32
	// protocol is the declared protocol of the port.
	protocol registry.Protocol
	// mtls: the chain accepts the mesh's mutual TLS.
	mtls bool
	// byName: Envoy may forward a request to the host in its Host header, which Envoy then resolves with DNS.
	byName bool
}
