package mesh

import "strconv"

// captureArgs are what the agent's command for redirection is told for a workload: the usual of a pod, and what the
// workload's annotations say as they would of one.
func captureArgs(w *Workload) []string {
	values := map[string]string{
		"--istio-service-cidr": "*", "--istio-inbound-ports": "*",
		"--istio-local-exclude-ports": "15020,15021,15090",
	}
	for annotation, flag := range captureAnnotations {
		if value, ok := w.Annotations[annotation]; ok {
			if flag == "--istio-local-exclude-ports" && value != "" {
				value += "," + values[flag]
			}
			values[flag] = value
		}
	}
	group := strconv.Itoa(proxyGroup)
	args := []string{
		"iptables", "--envoy-port=" + strconv.Itoa(outboundPort), "--inbound-capture-port=" + strconv.Itoa(inboundPort),
		"--proxy-uid=" + group, "--proxy-gid=" + group, "--istio-inbound-interception-mode=REDIRECT",
		"--redirect-dns", "--capture-all-dns", "--dual-stack",
	}
	for _, flag := range sortedKeys(values) {
		args = append(args, flag+"="+values[flag])
	}
	return args
}

// captureAnnotations are those of Istio's that say what of a pod is captured, and the flags that say so.
var captureAnnotations = map[string]string{
	"traffic.sidecar.istio.io/includeOutboundIPRanges": "--istio-service-cidr",
	"traffic.sidecar.istio.io/excludeOutboundIPRanges": "--istio-service-exclude-cidr",
	"traffic.sidecar.istio.io/includeInboundPorts":     "--istio-inbound-ports",
	"traffic.sidecar.istio.io/excludeInboundPorts":     "--istio-local-exclude-ports",
	"traffic.sidecar.istio.io/includeOutboundPorts":    "--istio-outbound-ports",
	"traffic.sidecar.istio.io/excludeOutboundPorts":    "--istio-local-outbound-ports-exclude",
	"traffic.sidecar.istio.io/excludeInterfaces":       "--istio-exclude-interfaces",
}
