package mesh

import (
	"maps"
	"slices"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// redirectionArgs returns the arguments of the agent that run its command `iptables` for w. The flags are a pod's
// defaults, changed by the workload's annotations.
func redirectionArgs(w *topology.Workload) []string {
	values := map[string]string{
		"--istio-service-cidr": "*", "--istio-inbound-ports": "*",
		"--istio-local-exclude-ports": "15020,15021,15090",
	}
	for annotation, flag := range redirectionAnnotations {
		if value, ok := w.Annotations[annotation]; ok {
			if flag == "--istio-local-exclude-ports" && value != "" {
				value += "," + values[flag]
			}
			values[flag] = value
		}
	}
	group := strconv.Itoa(proxyGroup)
	args := []string{
		"iptables", "--envoy-port=" + strconv.Itoa(topology.OutboundPort), "--inbound-capture-port=" + strconv.Itoa(topology.InboundPort),
		"--proxy-uid=" + group, "--proxy-gid=" + group, "--istio-inbound-interception-mode=REDIRECT",
		"--redirect-dns", "--capture-all-dns", "--dual-stack",
	}
	for _, flag := range slices.Sorted(maps.Keys(values)) {
		args = append(args, flag+"="+values[flag])
	}
	return args
}

// redirectionAnnotations maps Istio's annotations of a pod to flags of the agent's command `iptables`.
var redirectionAnnotations = map[string]string{
	"traffic.sidecar.istio.io/includeOutboundIPRanges": "--istio-service-cidr",
	"traffic.sidecar.istio.io/excludeOutboundIPRanges": "--istio-service-exclude-cidr",
	"traffic.sidecar.istio.io/includeInboundPorts":     "--istio-inbound-ports",
	"traffic.sidecar.istio.io/excludeInboundPorts":     "--istio-local-exclude-ports",
	"traffic.sidecar.istio.io/includeOutboundPorts":    "--istio-outbound-ports",
	"traffic.sidecar.istio.io/excludeOutboundPorts":    "--istio-local-outbound-ports-exclude",
	"traffic.sidecar.istio.io/excludeInterfaces":       "--istio-exclude-interfaces",
}
