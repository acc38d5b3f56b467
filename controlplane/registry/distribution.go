package registry

import (
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Distribution specifies which endpoints of a service proxies prefer. The zero value means that they use all endpoints.
type Distribution string

// The distributions.
const (
	// PreferSameZone prefers endpoints in the zone of the proxy, then those in its region.
	PreferSameZone Distribution = config.PreferSameZone
	// PreferSameNode prefers endpoints on the node of the proxy, then those in its subzone, zone and region.
	PreferSameNode Distribution = config.PreferSameNode
)

// distributionAnnotation is the annotation of a Service, a ServiceEntry or a namespace that specifies the distribution.
const distributionAnnotation = "networking.istio.io/traffic-distribution"

// distributionOf returns the distribution of a service. The first of these values determines it: the field of a
// Service's spec, the annotation of the document, the annotation of its namespace. As in Istio, a document overrides
// its namespace by an annotation with any other value.
func distributionOf(field string, annotations map[string]string, inherited string) Distribution {
	if d := parseDistribution(field); d != "" {
		return d
	}
	if own := annotations[distributionAnnotation]; own != "" {
		return parseDistribution(own)
	}
	return parseDistribution(inherited)
}

func parseDistribution(text string) Distribution {
	switch {
	case strings.EqualFold(text, config.PreferSameZone), strings.EqualFold(text, config.PreferClose):
		return PreferSameZone
	case strings.EqualFold(text, config.PreferSameNode):
		return PreferSameNode
	}
	return ""
}

// sessionLabels are the labels of a Service that enable persistent sessions, by a cookie or by a header.
var sessionLabels = []string{"istio.io/persistent-session", "istio.io/persistent-session-header"}

func hasSessions(labels map[string]string) bool {
	for _, name := range sessionLabels {
		if labels[name] != "" {
			return true
		}
	}
	return false
}
