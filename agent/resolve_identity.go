package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

func (r *resolver) identity() {
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
		r.env.note("domain", id.Domain, "flag --domain")
	} else {
		id.Domain = id.Namespace + ".svc.cluster.local"
		r.env.note("domain", id.Domain, "namespace")
	}
	r.nodeName()
	r.addresses()
	r.metadata()
	id.ClusterID, _ = id.Metadata["CLUSTER_ID"].(string)
}

// nodeName refuses names that would break the node id, whose parts are joined by "~".
func (r *resolver) nodeName() {
	for _, v := range []struct{ variable, value string }{
		{"POD_NAME", r.config.Identity.Name}, {"POD_NAMESPACE", r.config.Identity.Namespace},
		{"SERVICE_ACCOUNT", r.config.Identity.ServiceAccount}, {"TRUST_DOMAIN", r.config.Identity.TrustDomain},
	} {
		if strings.ContainsAny(v.value, "~/ \t\n") {
			r.env.refuse(v.variable, v.value, "a name has no ~, slash or space in it")
		}
	}
}

// addresses are INSTANCE_IP first, and then the machine's others. A loopback address stands alone: it is one workload of
// many on its machine.
func (r *resolver) addresses() {
	id := &r.config.Identity
	named := r.env.address("address", "INSTANCE_IP")
	if named.IsValid() {
		id.IPs = []netip.Addr{named}
		if named.IsLoopback() {
			return
		}
	}
	ips := r.interfaces()
	if len(ips)+len(id.IPs) == 0 && r.in.AwaitAddress != nil {
		ips = r.in.AwaitAddress()
	}
	for _, ip := range ips {
		if !slices.Contains(id.IPs, ip) {
			id.IPs = append(id.IPs, ip)
		}
	}
	if len(id.IPs) == 0 && r.env.vars["INSTANCE_IP"] == "" {
		// It may have one later: whoever starts the agent again is right to.
		r.env.lacking = codedError{errors.New("this machine has no address but loopback; set INSTANCE_IP to the one that the proxy is reached at"), exitFailed}
		return
	}
	r.env.note("addresses", id.IPs, "INSTANCE_IP and network interfaces")
}

func (r *resolver) interfaces() []netip.Addr {
	if r.in.Interfaces == nil {
		return nil
	}
	ips, err := r.in.Interfaces()
	if err != nil {
		r.env.warn("the machine's addresses cannot be listed: %v", err)
	}
	return ips
}

// metadata gathers what node metadata the environment and ProxyConfig give. ISTIO_META_X=v is X: "v"; ISTIO_METAJSON_*
// is an object whose entries are all added, whatever the variable is called.
func (r *resolver) metadata() {
	id, sources := &r.config.Identity, map[string]string{}
	id.Metadata = map[string]any{}
	add := func(key string, value any, source string) { id.Metadata[key], sources[key] = value, source }
	for name, value := range r.config.Proxy.GetProxyMetadata() {
		if key, ok := strings.CutPrefix(name, "ISTIO_META_"); ok && key != "" {
			add(key, value, "proxyMetadata "+name)
		}
	}
	for key, value := range r.env.prefixed("ISTIO_META_") {
		add(key, value, "environment ISTIO_META_"+key)
	}
	objects := r.env.prefixed("ISTIO_METAJSON_")
	for _, name := range sortedKeys(objects) {
		for key, value := range r.metadataObject("ISTIO_METAJSON_"+name, objects[name]) {
			add(key, value, "environment ISTIO_METAJSON_"+name)
		}
	}
	for _, key := range sortedKeys(id.Metadata) {
		r.env.note("metadata."+key, metadataText(id.Metadata[key]), sources[key])
	}
	r.nodeLabels()
}

// metadataText is a value as it may be printed and logged.
func metadataText(value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	text, err := json.Marshal(withoutSecrets(value))
	if err != nil {
		return notShown
	}
	return string(text)
}

func (r *resolver) metadataObject(variable, text string) map[string]any {
	object := map[string]any{}
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		r.env.refuse(variable, text, fmt.Sprintf(`write a JSON object, as {"key": "value"} (%v)`, err))
	}
	return object
}

// podTemplateHash differs between replica sets of one workload, so that it only makes equal proxies look unlike.
const podTemplateHash = "pod-template-hash"

// staticLabels is the metadata by which Istio's control plane knows the labels that are not the pod's, and which it would
// lose to the pod's otherwise.
const staticLabels = "STATIC_LABELS"

// nodeLabels are those of ISTIO_METAJSON_LABELS under those of the pod.
func (r *resolver) nodeLabels() {
	id := &r.config.Identity
	labels, pod := map[string]string{}, id.Labels
	if text := r.env.vars["ISTIO_METAJSON_LABELS"]; text != "" {
		if err := json.Unmarshal([]byte(text), &labels); err != nil {
			r.env.refuse("ISTIO_METAJSON_LABELS", text, `write a JSON object of strings, as {"app": "reviews"}`)
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
		r.env.note("label "+name, labels[name], source)
	}
}
