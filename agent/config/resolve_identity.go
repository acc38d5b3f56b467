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

// checkNames adds errors for names that would break the node ID, whose parts are joined by "~".
func (r *resolver) checkNames() {
	for _, v := range []struct{ variable, value string }{
		{"POD_NAME", r.config.Identity.Name}, {"POD_NAMESPACE", r.config.Identity.Namespace},
		{"SERVICE_ACCOUNT", r.config.Identity.ServiceAccount}, {"TRUST_DOMAIN", r.config.Identity.TrustDomain},
	} {
		if strings.ContainsAny(v.value, "~/ \t\n") {
			r.env.addValueError(v.variable, v.value, "a name has no ~, slash or space in it")
		}
	}
}

// ErrNoAddress reports that the machine has no address. It may get one later, so a restart of the agent can succeed.
var ErrNoAddress = errors.New("this machine has only loopback addresses; set INSTANCE_IP to the address of the proxy")

// resolveAddresses resolves the proxy's addresses: INSTANCE_IP first, then the machine's others. A loopback INSTANCE_IP
// is the only address: the machine then runs several workloads.
func (r *resolver) resolveAddresses() {
	id := &r.config.Identity
	named := r.env.address("address", "INSTANCE_IP")
	if named.IsValid() {
		id.IPs = []netip.Addr{named}
		if named.IsLoopback() {
			return
		}
	}
	ips := r.listInterfaces()
	if len(ips)+len(id.IPs) == 0 && r.in.AwaitAddress != nil {
		ips = r.in.AwaitAddress()
	}
	for _, ip := range ips {
		if !slices.Contains(id.IPs, ip) {
			id.IPs = append(id.IPs, ip)
		}
	}
	if len(id.IPs) == 0 && r.env.vars["INSTANCE_IP"] == "" {
		r.env.missingErr = ErrNoAddress
		return
	}
	r.env.addSetting("addresses", id.IPs, "INSTANCE_IP and network interfaces")
}

func (r *resolver) listInterfaces() []netip.Addr {
	if r.in.Interfaces == nil {
		return nil
	}
	ips, err := r.in.Interfaces()
	if err != nil {
		r.env.warn("the machine's addresses cannot be listed: %v", err)
	}
	return ips
}

// resolveMetadata collects the node metadata from ProxyConfig and the environment. ISTIO_META_X=v sets X to "v".
// ISTIO_METAJSON_* contains an object, all of whose entries are added.
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

// metadataText returns a metadata value for output, with secrets masked.
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
		r.env.addValueError(variable, text, fmt.Sprintf(`write a JSON object, as {"key": "value"} (%v)`, err))
	}
	return object
}

// podTemplateHash differs between replica sets of one workload. It is omitted, because it would make equal proxies look
// different.
const podTemplateHash = "pod-template-hash"

// staticLabels is the metadata entry from which Istio's control plane reads labels that are not the pod's. Otherwise
// the pod's labels would replace them.
const staticLabels = "STATIC_LABELS"

// resolveLabels merges the pod's labels over those of ISTIO_METAJSON_LABELS.
func (r *resolver) resolveLabels() {
	id := &r.config.Identity
	labels, pod := map[string]string{}, id.Labels
	if text := r.env.vars["ISTIO_METAJSON_LABELS"]; text != "" {
		if err := json.Unmarshal([]byte(text), &labels); err != nil {
			r.env.addValueError("ISTIO_METAJSON_LABELS", text, `write a JSON object of strings, as {"app": "reviews"}`)
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
