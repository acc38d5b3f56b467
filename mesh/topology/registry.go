package topology

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Registry returns the registry as it would be if all workloads were ready. It is used to analyze documents without
// running the mesh. The addresses are from a range reserved for benchmarks (RFC 2544).
func (t *Topology) Registry() config.Store {
	store := config.NewMemoryStore()
	n := 0
	for _, w := range t.Workloads {
		for range max(w.Replicas, 1) {
			n++
			store.Put(w.RegistryEntry(fmt.Sprintf("%s-%d", w.Name, n), fmt.Sprintf("198.18.%d.%d", n/250%250, n%250+1)))
		}
	}
	return store
}

// tlsModeLabel marks workloads whose proxy accepts the mesh's mutual TLS. If the label is missing, a workload with a
// service account is treated as marked.
const tlsModeLabel = "security.istio.io/tlsMode"

// RegistryEntry returns one instance of the workload as a registry document.
func (w *Workload) RegistryEntry(name, address string) *config.Resource {
	labels := map[string]string{}
	for k, v := range w.Labels {
		labels[k] = v
	}
	// Without a sidecar, nothing accepts mutual TLS. A gateway's TLS mode depends on its Gateway documents. As in Istio,
	// clients use the mesh's mutual TLS to these only if a DestinationRule requires it.
	switch {
	case w.HasSidecar():
		labels[tlsModeLabel] = "istio"
	case labels[tlsModeLabel] == "":
		labels[tlsModeLabel] = "disabled"
	}
	ports := map[string]uint32{}
	for _, p := range w.Ports {
		ports[p.Name] = uint32(p.Port)
	}
	return &config.Resource{
		Key:        config.Key{Kind: config.WorkloadEntry, Namespace: w.Namespace, Name: name},
		APIVersion: "networking.istio.io/v1",
		Labels:     labels,
		Spec: &networking.WorkloadEntry{
			Address: address, Labels: labels, ServiceAccount: w.ServiceAccount, Ports: ports,
		},
	}
}
