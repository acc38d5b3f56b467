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

// Names that are the same in Istio's registration.
const (
	groupAnnotation  = "istio.io/autoRegistrationGroup"
	healthAnnotation = "proxy.istio.io/health-checks-enabled"
	tlsModeLabel     = "security.istio.io/tlsMode"
)

const defaultAccount = "default"

func groupAccount(group *networking.WorkloadGroup) string {
	return cmp.Or(group.GetTemplate().GetServiceAccount(), defaultAccount)
}

// key returns the key of the workload's entry. As in Istio, its name consists of the group, the address and the
// network.
func (w Workload) key() config.Key {
	name := w.Group + "-" + strings.ReplaceAll(w.Address.String(), ":", "-")
	if w.Network != "" {
		name += "-" + w.Network
	}
	// A name has at most 253 characters. The beginning is removed, because the end distinguishes the members of the
	// group.
	return config.Key{Kind: config.WorkloadEntry, Namespace: w.Namespace, Name: name[max(0, len(name)-253):]}
}

// newEntry creates the WorkloadEntry of m from the template of group. Labels in the group's metadata override labels of
// the template. Both override the labels that the group allows its members to report.
func newEntry(m *member, group *config.Resource) *config.Resource {
	spec := group.Spec.(*networking.WorkloadGroup)
	entry := &networking.WorkloadEntry{}
	if spec.GetTemplate() != nil {
		entry = proto.Clone(spec.GetTemplate()).(*networking.WorkloadEntry)
	}
	entry.Address, entry.ServiceAccount = m.Address.String(), groupAccount(spec)
	entry.Network = acceptNetwork(m.Network, group)
	entry.Locality = cmp.Or(m.Locality, entry.Locality)
	labels := map[string]string{}
	accepted, _ := acceptLabels(m.Labels, group)
	maps.Copy(labels, accepted)
	labels[tlsModeLabel] = "istio" // only workloads with a sidecar can connect
	maps.Copy(labels, groupLabels(spec))
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

// Status describes one registered workload.
type Status struct {
	Entry       string    `json:"entry"`
	Group       string    `json:"group"`
	Address     string    `json:"address"`
	Connections int       `json:"connections"`
	InForce     bool      `json:"inForce"`
	Reason      string    `json:"reason,omitempty"` // why the entry is not published
	Expires     time.Time `json:"leaves,omitzero"`  // when the workload is removed unless it connects again
	// Overridden lists the attributes that the node reports but the control plane does not use, with the reasons.
	Overridden []string `json:"overridden,omitempty"`
}

// Workloads returns the registered workloads, sorted by the names of their entries.
func (r *Registrar) Workloads() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Status, 0, len(r.members))
	for key, m := range r.members {
		s := Status{
			Entry: key.Namespace + "/" + key.Name, Group: m.Group, Address: m.Address.String(), Connections: m.connections,
			InForce: r.Get(key) != nil, Expires: m.expires,
		}
		for _, o := range m.overrides {
			s.Overridden = append(s.Overridden, o.String())
		}
		if !m.isInForce() {
			s.Reason = cmp.Or(m.reason, "the workload is not healthy")
		} else if !s.InForce {
			s.Reason = "the WorkloadGroup was removed"
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Entry, b.Entry) })
	return out
}
