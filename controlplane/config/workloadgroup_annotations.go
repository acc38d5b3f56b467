package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Annotations of a WorkloadGroup. Without them, members register with exactly the labels of the group, and with the
// source address of their connection.
const (
	// MemberLabelsAnnotation lists the keys of the labels that a member may add, separated by commas.
	MemberLabelsAnnotation = "pilotfish.dev/member-labels"
	// MemberAddressesAnnotation lists the networks in which a member may register another address, separated by commas.
	MemberAddressesAnnotation = "pilotfish.dev/member-addresses"
)

// MemberLabels returns the keys of the labels that members of a WorkloadGroup may add, without labels for security and
// topology. annotations belong to the WorkloadGroup.
func MemberLabels(annotations map[string]string) []string {
	return slices.DeleteFunc(splitList(annotations[MemberLabelsAnnotation]), isPlatformLabel)
}

// MemberNetworks returns the networks in which members of a WorkloadGroup may choose their addresses. It skips items
// that are neither networks nor addresses; err reports the last of them.
func MemberNetworks(annotations map[string]string) (networks []netip.Prefix, err error) {
	for _, item := range splitList(annotations[MemberAddressesAnnotation]) {
		if addr, ok := netip.ParseAddr(item); ok == nil {
			item = netip.PrefixFrom(addr, addr.BitLen()).String()
		}
		network, parseErr := netip.ParsePrefix(item)
		if parseErr != nil {
			err = fmt.Errorf("%q is neither a network, such as 10.1.0.0/16, nor an IP address", item)
			continue
		}
		networks = append(networks, network)
	}
	return networks, err
}

// isPlatformLabel reports whether the label key affects security or topology, so that a proxy must not set it.
func isPlatformLabel(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	return found && (domain == "security.istio.io" || domain == "networking.istio.io" || strings.HasPrefix(domain, "topology."))
}

// IsLabelValue reports whether text is a valid label value.
func IsLabelValue(text string) bool { return labelValue.MatchString(text) }

func splitList(text string) []string {
	var out []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// checkMemberAnnotations warns of items that have no effect.
func (d *document) checkMemberAnnotations(annotations map[string]string) {
	field := func(annotation string) string { return "metadata.annotations[" + annotation + "]" }
	if _, err := MemberNetworks(annotations); err != nil {
		at := field(MemberAddressesAnnotation)
		d.report(Warning, d.fieldPosition(at), at, annotations[MemberAddressesAnnotation], err.Error(), "write networks separated by commas")
	}
	for _, key := range splitList(annotations[MemberLabelsAnnotation]) {
		if isPlatformLabel(key) {
			at := field(MemberLabelsAnnotation)
			d.report(Warning, d.fieldPosition(at), at, key, "members cannot set labels of security and topology", "set the label in the group")
		}
	}
}
