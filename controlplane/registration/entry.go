package registration

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// The names that Istio's registration uses too.
const (
	groupAnnotation  = "istio.io/autoRegistrationGroup"
	healthAnnotation = "proxy.istio.io/health-checks-enabled"
	tlsModeLabel     = "security.istio.io/tlsMode"
)

const defaultAccount = "default"

func accountOf(group *networking.WorkloadGroup) string {
	return cmp.Or(group.GetTemplate().GetServiceAccount(), defaultAccount)
}

// key names the workload's entry as Istio does: by its group, address and network.
func (w Workload) key() config.Key {
	name := w.Group + "-" + strings.ReplaceAll(w.Address.String(), ":", "-")
	if w.Network != "" {
		name += "-" + w.Network
	}
	// A name has 253 characters at most; what tells the members of a group apart is at its end.
	return config.Key{Kind: config.WorkloadEntry, Namespace: w.Namespace, Name: name[max(0, len(name)-253):]}
}

// entryOf fills in a group's template: what the workload says of itself goes above the group's metadata, and that above
// the template.
func entryOf(m *member, group *config.Resource) *config.Resource {
	spec := group.Spec.(*networking.WorkloadGroup)
	entry := &networking.WorkloadEntry{}
	if spec.GetTemplate() != nil {
		entry = proto.Clone(spec.GetTemplate()).(*networking.WorkloadEntry)
	}
	entry.Address, entry.ServiceAccount = m.Address.String(), accountOf(spec)
	entry.Network = cmp.Or(m.Network, entry.Network)
	entry.Locality = cmp.Or(m.Locality, entry.Locality)
	labels := map[string]string{}
	if entry.Labels[tlsModeLabel] == "" { // it has connected with a sidecar
		labels[tlsModeLabel] = "istio"
	}
	for _, more := range []map[string]string{entry.Labels, spec.GetMetadata().GetLabels(), m.Labels} {
		maps.Copy(labels, more)
	}
	entry.Labels = labels
	annotations := map[string]string{groupAnnotation: group.Name}
	maps.Copy(annotations, spec.GetMetadata().GetAnnotations())
	if m.HealthChecked {
		annotations[healthAnnotation] = "true"
	}
	return &config.Resource{
		Key: m.key, APIVersion: "networking.istio.io/v1", Labels: labels, Annotations: annotations, Created: group.Created,
		Origin: group.Origin, Spec: entry,
	}
}

// Status is one registered workload, for people and programs.
type Status struct {
	Entry       string    `json:"entry"`
	Group       string    `json:"group"`
	Address     string    `json:"address"`
	Connections int       `json:"connections"`
	InForce     bool      `json:"inForce"`
	Reason      string    `json:"reason,omitempty"` // why it is not in force
	Leaves      time.Time `json:"leaves,omitzero"`  // when it is struck out, if nobody connects for it
}

// Workloads are the registered ones, ordered by their entries.
func (r *Registrar) Workloads() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Status, 0, len(r.members))
	for key, m := range r.members {
		s := Status{
			Entry: key.Namespace + "/" + key.Name, Group: m.Group, Address: m.Address.String(), Connections: m.connections,
			InForce: r.Get(key) != nil, Leaves: m.leaves,
		}
		if !m.inForce() {
			s.Reason = cmp.Or(m.reason, "it is not healthy")
		} else if !s.InForce {
			s.Reason = "its WorkloadGroup is gone"
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Entry, b.Entry) })
	return out
}
