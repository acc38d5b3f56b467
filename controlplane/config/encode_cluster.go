package config

import "strings"

// encodePod writes a pod's fields into its document, and into the metadata of the document.
func encodePod(p *PodSpec, document, metadata map[string]any) {
	setText(metadata, "uid", p.UID)
	if p.Terminating {
		metadata["deletionTimestamp"] = encodedDeletion
	}
	if p.Workload != "" {
		metadata["ownerReferences"] = []any{map[string]any{"kind": "Workload", "name": p.Workload, "controller": true}}
	}
	spec := map[string]any{"serviceAccountName": p.ServiceAccount}
	setText(spec, "nodeName", p.Node)
	setText(spec, "hostname", p.Hostname)
	setText(spec, "subdomain", p.Subdomain)
	if p.HostNetwork {
		spec["hostNetwork"] = true
	}
	if len(p.Ports) > 0 {
		ports := []any{}
		for _, port := range p.Ports {
			ports = append(ports, map[string]any{"name": port.Name, "containerPort": port.Number})
		}
		spec["containers"] = []any{map[string]any{"ports": ports}}
	}
	addresses := []any{}
	for _, ip := range p.Addresses {
		addresses = append(addresses, map[string]any{"ip": ip.String()})
	}
	status := map[string]any{"podIPs": addresses}
	setText(status, "phase", p.Phase)
	if p.Ready {
		status["conditions"] = []any{map[string]any{"type": "Ready", "status": "True"}}
	}
	document["spec"], document["status"] = spec, status
}

// encodedDeletion is the deletion time of encoded objects. The parser only reads whether an object has one.
const encodedDeletion = "1970-01-01T00:00:00Z"

func encodeNode(n *NodeSpec, metadata map[string]any) {
	labels := map[string]any{}
	parts := append(strings.SplitN(n.Locality, "/", 3), "", "")
	for i, names := range [][]string{regionLabels, zoneLabels, subzoneLabels} {
		setText(labels, names[0], parts[i])
	}
	metadata["labels"] = labels
}

func encodeEndpointSlice(s *EndpointSliceSpec, document, metadata map[string]any) {
	if s.Service != "" {
		metadata["labels"] = map[string]any{ServiceNameLabel: s.Service}
	}
	ports, endpoints := []any{}, []any{}
	for _, p := range s.Ports {
		port := map[string]any{"protocol": p.Protocol, "port": p.Number}
		setText(port, "name", p.Name)
		ports = append(ports, port)
	}
	for _, e := range s.Endpoints {
		endpoint := map[string]any{
			"addresses":  []any{e.Address},
			"conditions": map[string]any{"ready": e.Ready, "serving": e.Serving, "terminating": e.Terminating},
		}
		setText(endpoint, "nodeName", e.Node)
		setText(endpoint, "zone", e.Zone)
		setText(endpoint, "hostname", e.Hostname)
		if e.Pod != "" {
			target := map[string]any{"kind": Pod, "name": e.Pod}
			setText(target, "uid", e.PodUID)
			endpoint["targetRef"] = target
		}
		endpoints = append(endpoints, endpoint)
	}
	document["addressType"], document["ports"], document["endpoints"] = s.AddressType, ports, endpoints
}
