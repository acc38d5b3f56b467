package describe

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// matchText describes the requests to which a route applies. A request must meet all conditions of at least one match.
func matchText(r *networking.HTTPRoute) string {
	if len(r.GetMatch()) == 0 {
		return "requests "
	}
	var ways []string
	for _, m := range r.GetMatch() {
		ways = append(ways, joinAll(requestConditions(m), "anything"))
	}
	return "requests with " + strings.Join(ways, ", or ") + " "
}

func requestConditions(m *networking.HTTPMatchRequest) []string {
	path := "path"
	if m.GetIgnoreUriCase() {
		path = "path (case-insensitive)"
	}
	parts := slices.Concat(stringMatchText(path, m.GetUri()), stringMatchText("scheme", m.GetScheme()), stringMatchText("method", m.GetMethod()),
		stringMatchText("authority", m.GetAuthority()))
	for _, name := range slices.Sorted(maps.Keys(m.GetHeaders())) {
		parts = append(parts, headerText(name, m.GetHeaders()[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetWithoutHeaders())) {
		parts = append(parts, "not "+headerText(name, m.GetWithoutHeaders()[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetQueryParams())) {
		parts = append(parts, valueText("query parameter", name, m.GetQueryParams()[name]))
	}
	return append(parts, contextText(m.GetPort(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetGateways())...)
}

// headerText describes a condition on a header or on a token claim.
func headerText(name string, m *networking.StringMatch) string {
	if path, claim := config.RoutingClaim(name); claim {
		return valueText("claim", strings.Join(path, "."), m)
	}
	return valueText("header", name, m)
}

// contextText describes conditions on the port, the source and the gateways of requests or connections.
func contextText(port uint32, labels map[string]string, namespace string, gateways []string) []string {
	var parts []string
	if port != 0 {
		parts = append(parts, fmt.Sprintf("port %d", port))
	}
	if len(labels) > 0 {
		parts = append(parts, "clients with the labels "+config.FormatLabels(labels))
	}
	if namespace != "" {
		parts = append(parts, "clients in namespace "+namespace)
	}
	if len(gateways) > 0 {
		parts = append(parts, "gateway "+strings.Join(gateways, " or "))
	}
	return parts
}

func tcpMatchText(matches []*networking.L4MatchAttributes) string {
	var ways []string
	for _, m := range matches {
		var parts []string
		if subnets := m.GetDestinationSubnets(); len(subnets) > 0 {
			parts = append(parts, "destination "+strings.Join(subnets, " or "))
		}
		ways = append(ways, joinAll(append(parts, contextText(m.GetPort(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetGateways())...), "anything"))
	}
	if len(ways) == 0 {
		return "connections "
	}
	return "connections with " + strings.Join(ways, ", or ") + " "
}

func tlsMatchText(matches []*networking.TLSMatchAttributes) string {
	var ways []string
	for _, m := range matches {
		parts := []string{strings.Join(m.GetSniHosts(), " or ")}
		if subnets := m.GetDestinationSubnets(); len(subnets) > 0 {
			parts = append(parts, "destination "+strings.Join(subnets, " or "))
		}
		ways = append(ways, joinAll(append(parts, contextText(m.GetPort(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetGateways())...), "anything"))
	}
	return "TLS for " + strings.Join(ways, ", or ") + " "
}

func valueText(what, name string, m *networking.StringMatch) string {
	if words := stringMatchText(what+" "+name, m); len(words) > 0 {
		return words[0]
	}
	return "a " + what + " " + name
}

func stringMatchText(what string, m *networking.StringMatch) []string {
	switch t := m.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return []string{fmt.Sprintf("%s %q", what, t.Exact)}
	case *networking.StringMatch_Prefix:
		return []string{fmt.Sprintf("%s %q…", what, t.Prefix)}
	case *networking.StringMatch_Regex:
		return []string{fmt.Sprintf("%s like %q", what, t.Regex)}
	}
	return nil
}

// joinAll joins conditions that must all match with "and". If there are no conditions, it returns none.
func joinAll(parts []string, none string) string {
	if len(parts) == 0 {
		return none
	}
	return strings.Join(parts, " and ")
}
