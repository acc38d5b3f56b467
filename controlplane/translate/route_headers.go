package translate

import (
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"
)

// headerChanges contains a rule's changes to the headers of requests or of responses.
type headerChanges struct {
	add    []*corev3.HeaderValueOption
	remove []string
}

func readHeaderChanges(op *networking.Headers_HeaderOperations) headerChanges {
	var c headerChanges
	for _, name := range slices.Sorted(maps.Keys(op.GetSet())) {
		if !isAuthority(name) {
			c.add = append(c.add, headerOption(name, op.GetSet()[name], corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(op.GetAdd())) {
		if !isAuthority(name) {
			c.add = append(c.add, headerOption(name, op.GetAdd()[name], corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD))
		}
	}
	for _, name := range op.GetRemove() {
		// Envoy rejects all routes if one route removes Host or a pseudo-header.
		if !isAuthority(name) && !strings.HasPrefix(name, ":") {
			c.remove = append(c.remove, name)
		}
	}
	return c
}

func headerOption(name, value string, how corev3.HeaderValueOption_HeaderAppendAction) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header: &corev3.HeaderValue{Key: name, Value: headerFormat(value)}, AppendAction: how, KeepEmptyValue: value == "",
	}
}

func isAuthority(name string) bool { return strings.EqualFold(name, "host") || name == ":authority" }

// rewrittenAuthority returns the value to which a rule sets the Host header, or "" if it does not set this header.
// Envoy has a separate field for this value.
func rewrittenAuthority(h *networking.Headers) string {
	set := h.GetRequest().GetSet()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if isAuthority(name) {
			return set[name]
		}
	}
	return ""
}

func addHeaders(route *routev3.Route, h *networking.Headers) {
	request, response := readHeaderChanges(h.GetRequest()), readHeaderChanges(h.GetResponse())
	route.RequestHeadersToAdd = append(route.RequestHeadersToAdd, request.add...)
	route.RequestHeadersToRemove = append(route.RequestHeadersToRemove, request.remove...)
	route.ResponseHeadersToAdd = append(route.ResponseHeadersToAdd, response.add...)
	route.ResponseHeadersToRemove = append(route.ResponseHeadersToRemove, response.remove...)
}

func addClusterHeaders(c *routev3.WeightedCluster_ClusterWeight, h *networking.Headers) {
	request, response := readHeaderChanges(h.GetRequest()), readHeaderChanges(h.GetResponse())
	c.RequestHeadersToAdd, c.RequestHeadersToRemove = request.add, request.remove
	c.ResponseHeadersToAdd, c.ResponseHeadersToRemove = response.add, response.remove
	if a := rewrittenAuthority(h); a != "" {
		c.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: a}
	}
}
