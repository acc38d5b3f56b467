package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

func (r *resolver) resolveIdentity() {
	id := &r.config.Identity
	id.Name = r.env.text("name", "POD_NAME", "", sourceDefault)
	id.Namespace = r.env.text("namespace", "POD_NAMESPACE", "default", sourceDefault)
	id.ServiceAccount = r.env.text("serviceAccount", "SERVICE_ACCOUNT", "default", sourceDefault)
	trustDomain, source := "cluster.local", sourceDefault
	if r.mesh.GetTrustDomain() != "" {
		trustDomain, source = r.mesh.GetTrustDomain(), "mesh file "+r.file
	}
	id.TrustDomain = r.env.text("trustDomain", "TRUST_DOMAIN", trustDomain, source)
	if id.Domain = r.in.Flags.Domain; id.Domain != "" {
		r.env.addSetting("domain", id.Domain, "flag --domain")
	} else {
		id.Domain = id.Namespace + ".svc.cluster.local"
		r.env.addSetting("domain", id.Domain, "namespace")
	}
	r.checkNames()
	r.resolveAddresses()
	r.resolveMetadata()
	id.ClusterID, _ = id.Metadata["CLUSTER_ID"].(string)
}

// checkNames adds an error for each name with characters that the node ID must not contain. The parts of a node ID are
// joined by "~".
func (r *resolver) checkNames() {
	for _, v := range []struct{ variable, value string }{
		{"POD_NAME", r.config.Identity.Name}, {"POD_NAMESPACE", r.config.Identity.Namespace},
		{"SERVICE_ACCOUNT", r.config.Identity.ServiceAccount}, {"TRUST_DOMAIN", r.config.Identity.TrustDomain},
	} {
		if strings.ContainsAny(v.value, "~/ \t\n") {
			r.env.addValueError(v.variable, v.value, "remove each ~, slash and space from the name")
		}
	}
}

// ErrNoAddress reports that the machine has no IP address other than loopback. A restart of the agent can succeed, because
// the network may start later than the agent.
var ErrNoAddress = errors.New("this machine has only loopback addresses; set INSTANCE_IP to the address of the proxy")

// resolveAddresses resolves the proxy's IP addresses: first INSTANCE_IP, then the machine's other addresses. If
// INSTANCE_IP is a loopback address, it is the proxy's only address: the machine then runs several workloads, each with
// its own loopback address.
func (r *resolver) resolveAddresses() {
	id := &r.config.Identity
	instance := r.env.address("address", "INSTANCE_IP")
	if instance.IsValid() {
		id.IPs = []netip.Addr{instance}
		if instance.IsLoopback() {
			return
		}
	}
	excluded := r.listExcludedAddresses()
	ips := slices.DeleteFunc(r.listInterfaces(), func(ip netip.Addr) bool { return slices.Contains(excluded, ip) })
	if len(ips)+len(id.IPs) == 0 && r.in.AwaitAddress != nil {
		ips = r.in.AwaitAddress()
	}
	for _, ip := range ips {
		if !slices.Contains(id.IPs, ip) {
			id.IPs = append(id.IPs, ip)
		}
	}
	if len(id.IPs) == 0 {
		r.env.missingErr = ErrNoAddress
		return
	}
	r.env.addSetting("addresses", id.IPs, "INSTANCE_IP and network interfaces")
}

// excludeInterfaces is the annotation with the interfaces whose traffic is not captured. As in Istio, their addresses
// are not addresses of the proxy.
const excludeInterfaces = "traffic.sidecar.istio.io/excludeInterfaces"

// listExcludedAddresses returns the addresses of the interfaces in the annotation excludeInterfaces.
func (r *resolver) listExcludedAddresses() []netip.Addr {
	if r.in.InterfaceAddresses == nil {
		return nil
	}
	var excluded []netip.Addr
	for name := range strings.SplitSeq(r.config.Identity.Annotations[excludeInterfaces], ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		ips, err := r.in.InterfaceAddresses(name)
		if err != nil {
			r.env.warn("annotation %s: cannot read the addresses of interface %s, so they remain addresses of the proxy: %v", excludeInterfaces, name, err)
		}
		excluded = append(excluded, ips...)
	}
	if len(excluded) > 0 {
		r.env.addSetting("excludedAddresses", excluded, "annotation "+excludeInterfaces)
	}
	return excluded
}

func (r *resolver) listInterfaces() []netip.Addr {
	if r.in.Interfaces == nil {
		return nil
	}
	ips, err := r.in.Interfaces()
	if err != nil {
		r.env.warn("cannot list the IP addresses of this machine: %v", err)
	}
	return ips
}

// resolveMetadata collects the node metadata from ProxyConfig and the environment. ISTIO_META_X=v sets the entry X to
// "v". ISTIO_METAJSON_* contains a JSON object; each of its fields sets an entry.
func (r *resolver) resolveMetadata() {
	id, sources := &r.config.Identity, map[string]string{}
	id.Metadata = map[string]any{}
	add := func(key string, value any, source string) { id.Metadata[key], sources[key] = value, source }
	for name, value := range r.config.Proxy.GetProxyMetadata() {
		if key, ok := strings.CutPrefix(name, "ISTIO_META_"); ok && key != "" {
			add(key, value, "proxyMetadata "+name)
		}
	}
	for key, value := range r.env.withPrefix("ISTIO_META_") {
		add(key, value, "environment ISTIO_META_"+key)
	}
	objects := r.env.withPrefix("ISTIO_METAJSON_")
	for _, name := range sortedKeys(objects) {
		for key, value := range r.parseMetadataObject("ISTIO_METAJSON_"+name, objects[name]) {
			add(key, value, "environment ISTIO_METAJSON_"+name)
		}
	}
	for _, key := range sortedKeys(id.Metadata) {
		r.env.addSetting("metadata."+key, metadataText(id.Metadata[key]), sources[key])
	}
	r.resolveLabels()
}

// metadataText formats a metadata value for the list of settings, with secrets masked.
func metadataText(value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	text, err := json.Marshal(maskJSON(value))
	if err != nil {
		return maskedValue
	}
	return string(text)
}

func (r *resolver) parseMetadataObject(variable, text string) map[string]any {
	object := map[string]any{}
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		r.env.warnValue(variable, text, fmt.Sprintf(`write a JSON object such as {"key": "value"} (%v)`, err), "the value has no effect")
		return nil
	}
	return object
}

// podTemplateHash is a label that differs between the ReplicaSets of one Deployment. The agent omits it, so that the
// control plane can generate one configuration for the proxies of all ReplicaSets.
const podTemplateHash = "pod-template-hash"

// staticLabels is the metadata entry from which Istio's control plane reads labels that are not on the pod. The control
// plane would replace labels in the entry LABELS by the pod's labels.
const staticLabels = "STATIC_LABELS"

// resolveLabels merges the labels in ISTIO_METAJSON_LABELS with the pod's labels, which have precedence.
func (r *resolver) resolveLabels() {
	id := &r.config.Identity
	labels, pod := map[string]string{}, id.Labels
	if text := r.env.vars["ISTIO_METAJSON_LABELS"]; text != "" {
		if err := json.Unmarshal([]byte(text), &labels); err != nil {
			r.env.warnValue("ISTIO_METAJSON_LABELS", text, `write a JSON object of strings, such as {"app": "reviews"}`, "the value has no effect")
			labels = map[string]string{}
		}
		if len(labels) > 0 {
			id.Metadata[staticLabels] = maps.Clone(labels)
		}
	}
	for name, value := range pod {
		if name != podTemplateHash {
			labels[name] = value
		}
	}
	id.Labels = labels
	for _, name := range sortedKeys(labels) {
		source := "environment ISTIO_METAJSON_LABELS"
		if _, ofPod := pod[name]; ofPod {
			source = "file " + labelsFile
		}
		r.env.addSetting("label "+name, labels[name], source)
	}
}
