package translate

import (
	"bytes"
	"slices"
	"strings"

	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

// Envoy formats each label of each metric for each request. If the agent can unpack labels, all labels of a metric are
// therefore packed into one label. The labels that a client sends are packed into another label.

const (
	// packedKey is the key of packed values in the metadata of endpoints and clusters.
	packedKey = "labels"
	// maxPeerHeader limits the length of a client's packed labels. Clients choose them, and Envoy stores them in the
	// name of each series.
	maxPeerHeader = "512"
)

// packsLabels reports whether the metrics of a chain have packed labels. They have not if a document or an access log
// uses a single label that a client, an endpoint or a cluster provides in packed form.
func (v proxyView) packsLabels(c chain) bool {
	if !v.p.UnpacksLabels {
		return false
	}
	fixed := []string{"grpc_response_status"}
	if c.side == inboundSide {
		fixed = append(fixed, peerLabels("source")...)
	} else {
		fixed = slices.Concat(fixed, peerLabels("destination"), serviceLabelNames())
	}
	for _, change := range v.metrics(c.direction()).changes {
		for name, expression := range change.Tags {
			if slices.Contains(fixed, name) || strings.Contains(expression, peerMetadata) {
				return false
			}
		}
	}
	return !v.logsPeer(c)
}

// logsPeer reports whether an access log contains single fields of the client's peer metadata.
func (v proxyView) logsPeer(c chain) bool {
	if c.side != inboundSide {
		return false
	}
	for _, log := range v.accessLogs(c) {
		if log.GetName() != fileLogName || bytes.Contains(log.GetTypedConfig().GetValue(), []byte(peerMetadata)) ||
			strings.Contains(log.GetFilter().String(), peerMetadata) {
			return true
		}
	}
	return false
}

// packTags replaces the tags whose values Envoy sets by one packed tag. It returns the packed tag and the other tags.
// The name of the packed tag contains the constant values, which therefore cost nothing for each request. The value of
// a foreign tag is last, because it may contain the separator.
func packTags(tags []tag) []tag {
	names := []string{exposition.PackedPrefix}
	var formats []string
	var last, rest []tag
	for _, t := range tags {
		switch {
		case t.caller || t.rules != nil || strings.Contains(t.format, exposition.PackedSeparator):
			rest = append(rest, t)
		case !strings.Contains(t.format, "%"):
			names = append(names, t.name, exposition.PackedConstant+exposition.EncodeConstant(t.format))
		case t.foreign:
			last = append(last, t)
		default:
			names, formats = append(names, t.name), append(formats, t.format)
		}
	}
	for _, t := range last {
		names, formats = append(names, t.name), append(formats, t.format)
	}
	if len(names) == 1 {
		return rest
	}
	if len(formats) == 0 {
		formats = []string{"-"} // Envoy rejects an empty format; the agent ignores the value
	}
	packed := tag{name: strings.Join(names, exposition.PackedNameSeparator), format: strings.Join(formats, exposition.PackedSeparator)}
	return append([]tag{packed}, rest...)
}

// packOne returns the name of a tag that contains several labels. joinOne returns its value.
func packOne(names []string) string {
	return strings.Join(names, exposition.PackedNameSeparator+exposition.PackedMore)
}

func joinOne(values ...string) string { return strings.Join(values, exposition.PackedMoreSeparator) }

func peerLabels(side string) []string {
	var names []string
	for _, f := range peerFields {
		names = append(names, side+"_"+f.label)
	}
	return names
}

func serviceLabelNames() []string {
	var names []string
	for _, l := range serviceLabels {
		names = append(names, l.name)
	}
	return names
}

// packedCallerTag returns the tag with all labels that the client has sent. Histograms also have all of them: otherwise
// two values of the packed label could result in the same labels.
func packedCallerTag() tag {
	names := append([]string{exposition.PackedPeerPrefix}, peerLabels("source")...)
	return tag{
		name: strings.Join(names, exposition.PackedNameSeparator), format: "%FILTER_STATE(" + peerMetadata + ":PLAIN)%",
		histograms: true, caller: true,
	}
}

// packedCalleeTags returns the labels of the endpoint, of its service, and of the certificates.
func packedCalleeTags() []tag {
	return []tag{
		{name: packOne(peerLabels("destination")), format: "%UPSTREAM_METADATA(istio:" + packedKey + ")%", histograms: true},
		{name: packOne(serviceLabelNames()), format: "%CLUSTER_METADATA(istio:" + packedKey + ")%", histograms: true},
		{name: "destination_principal", format: "%UPSTREAM_PEER_URI_SAN%", foreign: true},
		{name: "source_principal", format: "%UPSTREAM_LOCAL_URI_SAN%"},
	}
}

// packedPeerFilter stores the peer header of a request. The route removes the header.
func packedPeerFilter() *hcmv3.HttpFilter {
	state := stateOf(peerMetadata, "%REQ("+peerHeader+"):"+maxPeerHeader+"%")
	state.FactoryKey, state.SkipIfEmpty = "envoy.string", true
	return httpFilter(peerFilter, &setfilterstatev3.Config{OnRequestHeaders: []*filterstatev3.FilterStateValue{state}})
}
