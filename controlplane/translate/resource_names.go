package translate

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// The names of clusters that do not belong to a service.
const (
	// PassthroughCluster forwards connections to their original destination outside the mesh.
	PassthroughCluster = "PassthroughCluster"
	// BlackHoleCluster has no endpoints, so Envoy closes connections and responds 503 to requests.
	BlackHoleCluster = "BlackHoleCluster"
	// inboundPassthroughCluster forwards connections to those ports of the workload that no service has.
	inboundPassthroughCluster = "InboundPassthroughCluster"
	// sdsCluster is the cluster for the agent's SDS socket, which provides certificates. The agent defines it in the
	// bootstrap.
	sdsCluster = "sds-grpc"
)

// The names of route configurations and listeners.
const (
	httpProxyRoute  = "http_proxy"
	virtualOutbound = "virtualOutbound"
	virtualInbound  = "virtualInbound"
)

// OutboundCluster returns the name of the cluster of a service's port; subset may be empty.
func OutboundCluster(host, subset string, port uint32) string {
	return "outbound|" + strconv.FormatUint(uint64(port), 10) + "|" + subset + "|" + host
}

// InboundCluster returns the name of the cluster of a workload's own port.
func InboundCluster(port uint32) string { return fmt.Sprintf("inbound|%d||", port) }

// parseOutbound parses the name of an outbound cluster. ok is false for other names.
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

// parseInbound parses the name of the cluster of a workload's port. The port's route configuration has the same name.
func parseInbound(name string) (port uint32, ok bool) {
	rest, ok := strings.CutPrefix(name, "inbound|")
	if !ok {
		return 0, false
	}
	number, _, _ := strings.Cut(rest, "|")
	n, err := strconv.ParseUint(number, 10, 16)
	return uint32(n), err == nil
}

// ValidName reports whether a resource of type typeURL can be called name in any configuration of the mesh.
// EnvoyFilters may add clusters, listeners, routes and extensions with any name without control characters.
func ValidName(typeURL, name string) bool {
	if name == "" || strings.ContainsFunc(name, unicode.IsControl) {
		return false
	}
	_, _, _, outbound := parseOutbound(name)
	switch typeURL {
	case xds.EndpointType:
		return outbound || name == localCluster
	case xds.ClusterType:
		return outbound || !strings.HasPrefix(name, "outbound|")
	case xds.SecretType:
		return strings.HasPrefix(name, secretScheme)
	case xds.VirtualHostType:
		return strings.Contains(name, "/")
	}
	return true
}

// routesPort returns the port of a sidecar's route configuration that is called name. It returns 0 if the route
// configuration is for several ports.
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

// sniName returns the SNI of a sidecar's connections to a cluster. It is the cluster's name, written only with
// characters that a host name may contain.
func sniName(host, subset string, port uint32) string {
	return fmt.Sprintf("outbound_.%d_.%s_.%s", port, subset, host)
}

// listenerName returns the name of a listener on an address.
func listenerName(addr netip.AddrPort) string {
	return fmt.Sprintf("%s_%d", addr.Addr(), addr.Port())
}
