package config

import (
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"
)

// patchOperations lists the supported operations for each value of applyTo.
var patchOperations = map[networking.EnvoyFilter_ApplyTo][]networking.EnvoyFilter_Patch_Operation{
	networking.EnvoyFilter_LISTENER:            {patchAdd, patchRemove, patchMerge, patchMergeReplacingLists},
	networking.EnvoyFilter_LISTENER_FILTER:     listPatches,
	networking.EnvoyFilter_FILTER_CHAIN:        {patchAdd, patchRemove, patchMerge, patchMergeReplacingLists},
	networking.EnvoyFilter_NETWORK_FILTER:      listPatches,
	networking.EnvoyFilter_HTTP_FILTER:         listPatches,
	networking.EnvoyFilter_ROUTE_CONFIGURATION: {patchMerge, patchMergeReplacingLists},
	networking.EnvoyFilter_VIRTUAL_HOST:        {patchAdd, patchRemove, patchMerge, patchMergeReplacingLists, patchReplace},
	networking.EnvoyFilter_HTTP_ROUTE:          listPatches,
	networking.EnvoyFilter_CLUSTER:             {patchAdd, patchRemove, patchMerge, patchMergeReplacingLists},
	networking.EnvoyFilter_EXTENSION_CONFIG:    {patchAdd},
	networking.EnvoyFilter_BOOTSTRAP:           {patchMerge, patchMergeReplacingLists},
}

const (
	patchAdd    = networking.EnvoyFilter_Patch_ADD
	patchRemove = networking.EnvoyFilter_Patch_REMOVE
	patchMerge  = networking.EnvoyFilter_Patch_MERGE
	// patchMergeReplacingLists replaces lists instead of appending to them.
	patchMergeReplacingLists = networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	patchReplace             = networking.EnvoyFilter_Patch_REPLACE
)

var listPatches = []networking.EnvoyFilter_Patch_Operation{
	patchAdd, patchRemove, patchMerge, patchMergeReplacingLists, patchReplace, networking.EnvoyFilter_Patch_INSERT_FIRST,
	networking.EnvoyFilter_Patch_INSERT_BEFORE, networking.EnvoyFilter_Patch_INSERT_AFTER,
}

// validateEnvoyFilter performs the checks that require no knowledge of Envoy's API. Parser.Check validates the values
// of patches.
func validateEnvoyFilter(s validator, filter *networking.EnvoyFilter) {
	if len(filter.GetConfigPatches()) == 0 {
		s.warn("", "an EnvoyFilter without configPatches has no effect", "add a patch, or remove the document")
	}
	s.field("workloadSelector").field("labels").checkLabels(filter.GetWorkloadSelector().GetLabels())
	if len(filter.GetTargetRefs()) > 0 && filter.GetWorkloadSelector() != nil {
		s.field("targetRefs").refuse("", "targetRefs and workloadSelector exclude each other", "remove one of the two")
	}
	for i, p := range filter.GetConfigPatches() {
		s.item("configPatches", i).checkEnvoyPatch(p)
	}
}

func (s validator) checkEnvoyPatch(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	op, value := p.GetPatch().GetOperation(), s.field("patch").field("value")
	allowed, known := patchOperations[p.GetApplyTo()]
	switch {
	case !known:
		s.field("applyTo").refuse(p.GetApplyTo(), "the patch has no applyTo", "one of LISTENER, FILTER_CHAIN, NETWORK_FILTER, HTTP_FILTER, LISTENER_FILTER, ROUTE_CONFIGURATION, VIRTUAL_HOST, HTTP_ROUTE, CLUSTER, EXTENSION_CONFIG")
		return
	case op == networking.EnvoyFilter_Patch_INVALID:
		s.field("patch").refuse("", "the patch has no operation", fmt.Sprintf("set operation to one of %v", allowed))
		return
	case !slices.Contains(allowed, op):
		s.field("patch").field("operation").refuse(op, fmt.Sprintf("this operation is not possible for a %s", p.GetApplyTo()), fmt.Sprintf("use one of %v", allowed))
		return
	case op != patchRemove && len(p.GetPatch().GetValue().GetFields()) == 0:
		value.refuse("", "the patch has no value", "set the value to add or merge")
	case op == patchAdd && p.GetApplyTo() == networking.EnvoyFilter_LISTENER && p.GetPatch().GetValue().GetFields()["name"].GetStringValue() == "":
		value.field("name").refuse("", "a listener needs a name", "set a unique name")
	}
	s.checkPatchWithoutEffect(p)
	s.checkPatchMatch(p)
	s.checkPatchTarget(p)
	if class := p.GetPatch().GetFilterClass(); class != networking.EnvoyFilter_Patch_UNSPECIFIED && (op != patchAdd || p.GetApplyTo() != networking.EnvoyFilter_HTTP_FILTER) {
		s.field("patch").field("filterClass").warn(class, "has an effect only if the operation is ADD and applyTo is HTTP_FILTER", "remove the field")
	}
}

func (s validator) checkPatchWithoutEffect(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	const remedy = "remove the patch, unless another mesh uses the document"
	switch {
	case p.GetApplyTo() == networking.EnvoyFilter_BOOTSTRAP && s.d.startsProxies:
		if proxy := p.GetMatch().GetProxy(); proxy.GetProxyVersion() != "" || len(proxy.GetMetadata()) > 0 {
			s.field("match").field("proxy").warn("BOOTSTRAP", "the patch has no effect, because version and metadata of a proxy are unknown before the proxy starts", "select proxies by labels, with workloadSelector")
		}
	case p.GetApplyTo() == networking.EnvoyFilter_BOOTSTRAP:
		s.field("applyTo").warn("BOOTSTRAP", "the patch has no effect, because the agent creates the bootstrap before it connects to the control plane",
			"set a bootstrap override for the agent (ISTIO_BOOTSTRAP_OVERRIDE)")
	case p.GetMatch().GetContext() == networking.EnvoyFilter_WAYPOINT || p.GetMatch().GetWaypoint() != nil:
		s.field("match").warn("WAYPOINT", "the patch has no effect, because this mesh has no waypoints", remedy)
	case p.GetMatch().GetListener().GetPortName() != "":
		s.field("match").field("listener").field("portName").warn(p.GetMatch().GetListener().GetPortName(), "the patch has no effect, because listeners do not contain the names of ports", "use portNumber")
	}
}

// checkPatchMatch checks that the match of p fits its applyTo.
func (s validator) checkPatchMatch(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	match := s.field("match")
	match.field("proxy").field("proxyVersion").checkRegex(p.GetMatch().GetProxy().GetProxyVersion())
	wanted := "listener"
	switch p.GetApplyTo() {
	case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
		wanted = "routeConfiguration"
	case networking.EnvoyFilter_CLUSTER:
		wanted = "cluster"
	case networking.EnvoyFilter_EXTENSION_CONFIG, networking.EnvoyFilter_BOOTSTRAP:
		return
	}
	given := ""
	switch p.GetMatch().GetObjectTypes().(type) {
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Listener:
		given = "listener"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration:
		given = "routeConfiguration"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Cluster:
		given = "cluster"
	}
	if given != "" && given != wanted {
		match.field(given).refuse("", fmt.Sprintf("a patch for a %s requires a match on %s", p.GetApplyTo(), wanted), "match on "+wanted)
	}
}

// checkPatchTarget checks that a patch that removes or replaces a filter names the filter.
func (s validator) checkPatchTarget(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	op := p.GetPatch().GetOperation()
	if op != patchRemove && op != patchReplace {
		return
	}
	filter := p.GetMatch().GetListener().GetFilterChain().GetFilter()
	named, field := true, ""
	switch p.GetApplyTo() {
	case networking.EnvoyFilter_NETWORK_FILTER:
		named, field = filter.GetName() != "", "match.listener.filterChain.filter.name"
	case networking.EnvoyFilter_HTTP_FILTER:
		named, field = filter.GetSubFilter().GetName() != "", "match.listener.filterChain.filter.subFilter.name"
	case networking.EnvoyFilter_LISTENER_FILTER:
		named, field = p.GetMatch().GetListener().GetListenerFilter() != "", "match.listener.listenerFilter"
	}
	if !named {
		s.field("match").refuse("", fmt.Sprintf("%s does not specify the filter", op), "name it: "+field)
	}
}
