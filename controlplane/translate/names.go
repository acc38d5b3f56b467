package translate

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The names of clusters that belong to no service.
const (
	// PassthroughCluster leads to where the caller wanted, outside the mesh.
	PassthroughCluster = "PassthroughCluster"
	// BlackHoleCluster leads nowhere.
	BlackHoleCluster = "BlackHoleCluster"
	// inboundPassthroughCluster leads to ports of the workload that no service lists.
	inboundPassthroughCluster = "InboundPassthroughCluster"
	// sdsCluster is the agent's socket for certificates; it is in the bootstrap.
	sdsCluster = "sds-grpc"
)

// The names of route configurations and listeners.
const (
	httpProxyRoute  = "http_proxy"
	virtualOutbound = "virtualOutbound"
	virtualInbound  = "virtualInbound"
)

// OutboundCluster is the name of the cluster of a service's port; subset may be empty.
func OutboundCluster(host, subset string, port uint32) string {
	return "outbound|" + strconv.FormatUint(uint64(port), 10) + "|" + subset + "|" + host
}

// InboundCluster is the name of the cluster of a workload's own port.
func InboundCluster(port uint32) string { return fmt.Sprintf("inbound|%d||", port) }

// parseOutbound takes the name of an outbound cluster apart.
func parseOutbound(name string) (host, subset string, port uint32, ok bool) {
	parts := strings.Split(name, "|")
	if len(parts) != 4 || parts[0] != "outbound" {
		return "", "", 0, false
	}
	n, err := strconv.ParseUint(parts[1], 10, 16)
	if err != nil {
		return "", "", 0, false
	}
	return parts[3], parts[2], uint32(n), true
}

// parseInbound takes the name of a cluster of a workload's port, which is that of its routes too, apart.
func parseInbound(name string) (port uint32, ok bool) {
	rest, ok := strings.CutPrefix(name, "inbound|")
	if !ok {
		return 0, false
	}
	number, _, _ := strings.Cut(rest, "|")
	n, err := strconv.ParseUint(number, 10, 16)
	return uint32(n), err == nil
}

// routesPort is the port of the services that a route configuration of a sidecar is for; 0 when it is for several.
func routesPort(name string) uint32 {
	if port, ok := parseInbound(name); ok {
		return port
	}
	n, err := strconv.ParseUint(name[strings.LastIndexByte(name, ':')+1:], 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// sniName is what a caller's sidecar names in the TLS handshake: the cluster, in letters that a host name may have.
func sniName(host, subset string, port uint32) string {
	return fmt.Sprintf("outbound_.%d_.%s_.%s", port, subset, host)
}

// listenerName is the name of a listener on an address.
func listenerName(addr netip.AddrPort) string {
	return fmt.Sprintf("%s_%d", addr.Addr(), addr.Port())
}
