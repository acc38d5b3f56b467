package describe

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// matchWords say which requests a route is for: those with all conditions of one of its matches.
func matchWords(r *networking.HTTPRoute) string {
	if len(r.GetMatch()) == 0 {
		return "requests "
	}
	var ways []string
	for _, m := range r.GetMatch() {
		ways = append(ways, allOf(requestConditions(m), "anything"))
	}
	return "requests with " + strings.Join(ways, ", or ") + " "
}

func requestConditions(m *networking.HTTPMatchRequest) []string {
	path := "path"
	if m.GetIgnoreUriCase() {
		path = "path in any case"
	}
	parts := slices.Concat(stringWords(path, m.GetUri()), stringWords("scheme", m.GetScheme()), stringWords("method", m.GetMethod()),
		stringWords("authority", m.GetAuthority()))
	for _, name := range slices.Sorted(maps.Keys(m.GetHeaders())) {
		parts = append(parts, headerWords(name, m.GetHeaders()[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetWithoutHeaders())) {
		parts = append(parts, "not "+headerWords(name, m.GetWithoutHeaders()[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetQueryParams())) {
		parts = append(parts, valueWords("query parameter", name, m.GetQueryParams()[name]))
	}
	return append(parts, placeWords(m.GetPort(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetGateways())...)
}

// headerWords are about a header, or the claim of a token that the name stands for.
func headerWords(name string, m *networking.StringMatch) string {
	if path, claim := config.RoutingClaim(name); claim {
		return valueWords("claim", strings.Join(path, "."), m)
	}
	return valueWords("header", name, m)
}

// placeWords say where requests or connections come from and arrive.
func placeWords(port uint32, labels map[string]string, namespace string, gateways []string) []string {
	var parts []string
	if port != 0 {
		parts = append(parts, fmt.Sprintf("port %d", port))
	}
	if len(labels) > 0 {
		parts = append(parts, "callers labelled "+labelWords(labels))
	}
	if namespace != "" {
		parts = append(parts, "callers of namespace "+namespace)
	}
	if len(gateways) > 0 {
		parts = append(parts, "arrival by "+strings.Join(gateways, " or "))
	}
	return parts
}

func tcpMatchWords(matches []*networking.L4MatchAttributes) string {
	var ways []string
	for _, m := range matches {
		var parts []string
		if subnets := m.GetDestinationSubnets(); len(subnets) > 0 {
			parts = append(parts, "destination "+strings.Join(subnets, " or "))
		}
		ways = append(ways, allOf(append(parts, placeWords(m.GetPort(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetGateways())...), "anything"))
	}
	if len(ways) == 0 {
		return "connections "
	}
	return "connections with " + strings.Join(ways, ", or ") + " "
}

func tlsMatchWords(matches []*networking.TLSMatchAttributes) string {
	var ways []string
	for _, m := range matches {
		parts := []string{strings.Join(m.GetSniHosts(), " or ")}
		if subnets := m.GetDestinationSubnets(); len(subnets) > 0 {
			parts = append(parts, "destination "+strings.Join(subnets, " or "))
		}
		ways = append(ways, allOf(append(parts, placeWords(m.GetPort(), m.GetSourceLabels(), m.GetSourceNamespace(), m.GetGateways())...), "anything"))
	}
	return "TLS for " + strings.Join(ways, ", or ") + " "
}

func valueWords(what, name string, m *networking.StringMatch) string {
	if words := stringWords(what+" "+name, m); len(words) > 0 {
		return words[0]
	}
	return "a " + what + " " + name
}

func stringWords(what string, m *networking.StringMatch) []string {
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

// allOf joins conditions that hold together; none are what is said instead.
func allOf(parts []string, none string) string {
	if len(parts) == 0 {
		return none
	}
	return strings.Join(parts, " and ")
}

func labelWords(labels map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, name+"="+labels[name])
	}
	return strings.Join(out, ",")
}
