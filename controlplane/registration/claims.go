package registration

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const networkLabel = "topology.istio.io/network"

// maxOverrides limits how many overridden attributes of one workload are logged and displayed.
const maxOverrides = 10

// override describes an attribute that a node reports but its group does not allow. result is the value that is used
// instead, or the reason.
type override struct{ claim, result string }

func (o override) String() string { return o.claim + ": " + o.result }

// acceptClaims replaces the labels, the network and the address in w, which the node reports, by values that group
// allows. It returns the replaced attributes. The node's token proves only its service account, so the node could claim
// any attributes. They matter for security: labels determine for which services the node receives requests, and the
// requests are sent to its address.
func (r *Registrar) acceptClaims(w *Workload, group *config.Resource) ([]override, error) {
	labels, overrides := acceptLabels(w.Labels, group)
	network := acceptNetwork(w.Network, group)
	if w.Network != "" && network != w.Network {
		overrides = append(overrides, override{fmt.Sprintf("network %.80q", w.Network), fmt.Sprintf("the control plane uses %q instead", network)})
	}
	address, err := r.acceptAddress(w, group)
	if err != nil {
		return nil, err
	}
	if address != w.Address.Unmap() {
		overrides = append(overrides, override{"address " + w.Address.String(), fmt.Sprintf(
			"the control plane uses the source address %s of the connection instead; to allow the claim, list the network of the claimed address in the annotation %s of WorkloadGroup %s/%s",
			address, config.MemberAddressesAnnotation, group.Namespace, group.Name)})
	}
	w.Labels, w.Network, w.Address = labels, network, address
	return overrides[:min(len(overrides), maxOverrides)], nil
}

// groupLabels returns the labels that group sets on its members.
func groupLabels(group *networking.WorkloadGroup) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, group.GetTemplate().GetLabels())
	maps.Copy(labels, group.GetMetadata().GetLabels())
	return labels
}

// acceptLabels returns the labels in claimed whose keys the group allows and does not set itself. overrides contains
// the other labels, except those that have the value that the group sets or that every member has.
func acceptLabels(claimed map[string]string, group *config.Resource) (accepted map[string]string, overrides []override) {
	allowed := config.MemberLabels(group.Annotations)
	set := groupLabels(group.Spec.(*networking.WorkloadGroup))
	if set[tlsModeLabel] == "" {
		set[tlsModeLabel] = "istio"
	}
	for _, key := range slices.Sorted(maps.Keys(claimed)) {
		value := claimed[key]
		own, isSet := set[key]
		switch {
		case isSet && own == value:
		case isSet:
			overrides = append(overrides, override{labelClaim(key, value), fmt.Sprintf("the group sets %q", own)})
		case slices.Contains(allowed, key) && config.IsLabelValue(value):
			if accepted == nil {
				accepted = map[string]string{}
			}
			accepted[key] = value
		default:
			overrides = append(overrides, override{labelClaim(key, value), "the group does not allow this label"})
		}
	}
	return accepted, overrides
}

func labelClaim(key, value string) string { return fmt.Sprintf("label %.80q=%.80q", key, value) }

func acceptNetwork(claimed string, group *config.Resource) string {
	spec := group.Spec.(*networking.WorkloadGroup)
	if own := cmp.Or(spec.GetTemplate().GetNetwork(), groupLabels(spec)[networkLabel]); own != "" {
		return own
	}
	if !config.IsLabelValue(claimed) {
		return ""
	}
	return claimed
}

// acceptAddress returns the reported address if the group allows it, and otherwise the source address of the
// connection. It returns an error if other workloads cannot connect to the address. It accepts loopback addresses only
// from workloads of a local mesh.
func (r *Registrar) acceptAddress(w *Workload, group *config.Resource) (netip.Addr, error) {
	claimed, source := w.Address.Unmap(), w.Source.Unmap()
	contains := func(n netip.Prefix) bool { return n.Contains(claimed) }
	if slices.ContainsFunc(r.cfg.LocalNetworks, contains) && source.IsLoopback() {
		return claimed, nil
	}
	networks, _ := config.MemberNetworks(group.Annotations) // the validation of the group already reported the error
	address := source
	if slices.ContainsFunc(networks, contains) {
		address = claimed
	}
	switch {
	case address.IsLoopback() || address.IsLinkLocalUnicast():
		return address, fmt.Errorf("the workload at %s %w: it connects from %s, but members cannot have a loopback or link-local address: "+
			"let it connect from its own address, or list the network of the claimed address in the annotation %s of WorkloadGroup %s/%s",
			w.Address, ErrRefused, source, config.MemberAddressesAnnotation, group.Namespace, group.Name)
	case !address.IsValid() || address.Zone() != "" || address.IsUnspecified() || address.IsMulticast():
		return address, fmt.Errorf("the workload %w: other workloads cannot connect to %q: set INSTANCE_IP to an address that they can reach", ErrRefused, address)
	}
	return address, nil
}
