package envoyfilter

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// ChangesHTTPFilters reports whether any patch may change the HTTP filters of listeners.
func (s *Set) ChangesHTTPFilters() bool {
	return len(s.selectPatches(func(p *patch) bool { return listenerPatchTypes[p.to] })) > 0
}

// Listeners applies the patches to a proxy's listeners. router is set if the proxy is a gateway. inbound is the name of
// the listener that receives the connections to all inbound ports, or "". A patch for one port changes only those
// filter chains of the inbound listener that are for this port.
func (s *Set) Listeners(router bool, inbound string, listeners []*listenerv3.Listener) []*listenerv3.Listener {
	if len(s.selectPatches(func(p *patch) bool { return listenerPatchTypes[p.to] })) == 0 {
		return listeners
	}
	out := make([]*listenerv3.Listener, 0, len(listeners))
	taken := map[string]bool{}
	for _, l := range listeners {
		side := listenerSide(router, l)
		l = s.listener(side, l.GetName() == inbound, l)
		if l != nil {
			out = append(out, l)
			taken[l.GetName()] = true
		}
	}
	for _, p := range s.patchesFor(networking.EnvoyFilter_LISTENER) {
		added, ok := p.value.(*listenerv3.Listener)
		if p.op != networking.EnvoyFilter_Patch_ADD || !ok || taken[added.GetName()] || !p.appliesToProxy(router) {
			continue
		}
		if err := checkListener(added); err != nil {
			s.skip(p, "listener", added.GetName(), err)
			continue
		}
		taken[added.GetName()] = true
		out = append(out, added)
	}
	return out
}

var listenerPatchTypes = map[networking.EnvoyFilter_ApplyTo]bool{
	networking.EnvoyFilter_LISTENER: true, networking.EnvoyFilter_LISTENER_FILTER: true, networking.EnvoyFilter_FILTER_CHAIN: true,
	networking.EnvoyFilter_NETWORK_FILTER: true, networking.EnvoyFilter_HTTP_FILTER: true,
}

// appliesToProxy reports whether the context of a patch includes a gateway (if router is set) or a sidecar.
func (p *patch) appliesToProxy(router bool) bool {
	if router {
		return p.appliesTo(Gateway)
	}
	return p.appliesTo(Inbound) || p.appliesTo(Outbound)
}

func listenerSide(router bool, l *listenerv3.Listener) Side {
	switch {
	case router:
		return Gateway
	case l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND:
		return Inbound
	}
	return Outbound
}

// listener applies the patches to one listener. everyPort is set if the listener receives the connections to all
// inbound ports. It returns nil if a patch removes the listener.
func (s *Set) listener(side Side, everyPort bool, l *listenerv3.Listener) *listenerv3.Listener {
	for _, to := range []networking.EnvoyFilter_ApplyTo{
		networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_LISTENER_FILTER, networking.EnvoyFilter_FILTER_CHAIN,
		networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER,
	} {
		for _, p := range s.patchesFor(to) {
			if !p.appliesTo(side) || !p.matchesListener(everyPort, l) {
				continue
			}
			if to == networking.EnvoyFilter_LISTENER && p.op == networking.EnvoyFilter_Patch_REMOVE {
				return nil
			}
			name := l.GetName()
			l = tryPatch(s, p, "listener", name, l, checkListener, func(l *listenerv3.Listener) (bool, error) { return p.applyToListener(everyPort, l) })
		}
	}
	return l
}

func (p *patch) matchesListener(everyPort bool, l *listenerv3.Listener) bool {
	if p.match.GetObjectTypes() == nil {
		return true
	}
	m := p.match.GetListener()
	if m == nil || m.GetName() != "" && m.GetName() != l.GetName() {
		return false
	}
	// The listeners that this package receives have no port names, so a patch with a port name never applies.
	return m.GetPortName() == "" && (everyPort || m.GetPortNumber() == 0 || m.GetPortNumber() == listenerPort(l))
}

func listenerPort(l *listenerv3.Listener) uint32 {
	return l.GetAddress().GetSocketAddress().GetPortValue()
}

// applyToListener applies a patch to a listener that meets the patch's conditions on listeners. It reports whether the
// patch has changed the listener.
func (p *patch) applyToListener(everyPort bool, l *listenerv3.Listener) (bool, error) {
	switch p.to {
	case networking.EnvoyFilter_LISTENER:
		if !p.isMerge() {
			return false, nil
		}
		name := l.GetName()
		p.merge(l, p.value)
		l.Name = name
		return true, nil
	case networking.EnvoyFilter_LISTENER_FILTER:
		return p.changeListenerFilters(l)
	case networking.EnvoyFilter_FILTER_CHAIN:
		return p.changeChains(everyPort, l)
	}
	changed := false
	for _, chain := range filterChains(l) {
		if !p.matchesChain(everyPort, chain) {
			continue
		}
		did, err := p.changeFilters(chain)
		if err != nil {
			return false, err
		}
		changed = changed || did
	}
	return changed, nil
}

// filterChains returns all filter chains of a listener, including the default filter chain.
func filterChains(l *listenerv3.Listener) []*listenerv3.FilterChain {
	out := slices.Clone(l.GetFilterChains())
	if l.GetDefaultFilterChain() != nil {
		out = append(out, l.GetDefaultFilterChain())
	}
	return out
}

func (p *patch) changeListenerFilters(l *listenerv3.Listener) (changed bool, err error) {
	wanted := p.match.GetListener().GetListenerFilter()
	l.ListenerFilters, changed, err = editList(l.GetListenerFilters(), p, wanted != "",
		func(f *listenerv3.ListenerFilter) bool { return f.GetName() == wanted }, func(*listenerv3.ListenerFilter) bool { return false })
	return changed, err
}

func (p *patch) changeChains(everyPort bool, l *listenerv3.Listener) (bool, error) {
	switch p.op {
	case networking.EnvoyFilter_Patch_ADD:
		l.FilterChains = append(l.FilterChains, proto.Clone(p.value).(*listenerv3.FilterChain))
		return true, nil
	case networking.EnvoyFilter_Patch_REMOVE:
		before := len(l.FilterChains)
		l.FilterChains = slices.DeleteFunc(l.FilterChains, func(c *listenerv3.FilterChain) bool { return p.matchesChain(everyPort, c) })
		return len(l.FilterChains) != before, nil
	case networking.EnvoyFilter_Patch_MERGE, networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST:
		changed := false
		for _, chain := range filterChains(l) {
			if p.matchesChain(everyPort, chain) {
				p.merge(chain, p.value)
				changed = true
			}
		}
		return changed, nil
	}
	return false, nil
}

func (p *patch) matchesChain(everyPort bool, c *listenerv3.FilterChain) bool {
	m, has := p.match.GetListener(), c.GetFilterChainMatch()
	if everyPort && m.GetPortNumber() != 0 && m.GetPortNumber() != has.GetDestinationPort().GetValue() {
		return false
	}
	want := m.GetFilterChain()
	switch {
	case want == nil:
		return true
	case want.GetName() != "" && want.GetName() != c.GetName(),
		want.GetSni() != "" && !slices.Contains(has.GetServerNames(), want.GetSni()),
		want.GetTransportProtocol() != "" && want.GetTransportProtocol() != has.GetTransportProtocol(),
		want.GetDestinationPort() != 0 && want.GetDestinationPort() != has.GetDestinationPort().GetValue():
		return false
	}
	for protocol := range strings.SplitSeq(want.GetApplicationProtocols(), ",") {
		if protocol = strings.TrimSpace(protocol); protocol != "" && !slices.Contains(has.GetApplicationProtocols(), protocol) {
			return false
		}
	}
	return true
}

// changeFilters applies a patch to the network filters of a filter chain, or to the HTTP filters of its HTTP connection
// managers.
func (p *patch) changeFilters(chain *listenerv3.FilterChain) (changed bool, err error) {
	wanted := p.match.GetListener().GetFilterChain().GetFilter()
	if p.to == networking.EnvoyFilter_NETWORK_FILTER {
		chain.Filters, changed, err = editList(chain.GetFilters(), p, wanted.GetName() != "",
			func(f *listenerv3.Filter) bool { return f.GetName() == wanted.GetName() }, isTerminal)
		return changed, err
	}
	for _, f := range chain.GetFilters() {
		if wanted.GetName() != "" && wanted.GetName() != f.GetName() {
			continue
		}
		did, err := p.changeHTTPFilters(f, wanted.GetSubFilter().GetName())
		if err != nil {
			return false, err
		}
		changed = changed || did
	}
	return changed, nil
}

func (p *patch) changeHTTPFilters(f *listenerv3.Filter, wanted string) (bool, error) {
	m, err := connectionManager(f)
	if m == nil || err != nil {
		return false, err
	}
	filters, changed, err := p.editHTTP(m.GetHttpFilters(), wanted)
	if !changed || err != nil {
		return false, err
	}
	m.HttpFilters = filters
	content, err := packAny(m)
	if err != nil {
		return false, err
	}
	f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: content}
	return true, nil
}

func (p *patch) editHTTP(filters []*hcmv3.HttpFilter, wanted string) ([]*hcmv3.HttpFilter, bool, error) {
	if at := classIndex(p.class, filters); p.op == networking.EnvoyFilter_Patch_ADD && at >= 0 {
		return slices.Insert(slices.Clone(filters), at, proto.Clone(p.value).(*hcmv3.HttpFilter)), true, nil
	}
	return editList(filters, p, wanted != "", func(f *hcmv3.HttpFilter) bool { return f.GetName() == wanted }, isRouter)
}

// classIndex returns the index at which a filter of the class must be inserted. It returns -1 if the class is not
// specified.
func classIndex(class networking.EnvoyFilter_Patch_FilterClass, filters []*hcmv3.HttpFilter) int {
	before := func(names ...string) int {
		return max(0, slices.IndexFunc(filters, func(f *hcmv3.HttpFilter) bool {
			return slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(f.GetName(), name) }) || isRouter(f)
		}))
	}
	switch class {
	case networking.EnvoyFilter_Patch_AUTHN:
		return before("envoy.filters.http.jwt_authn", "envoy.filters.http.rbac")
	case networking.EnvoyFilter_Patch_AUTHZ:
		return before("envoy.filters.http.rbac")
	case networking.EnvoyFilter_Patch_STATS:
		return before()
	}
	return -1
}

// connectionManager decodes the HTTP connection manager in a filter. It returns nil for other filters.
func connectionManager(f *listenerv3.Filter) (*hcmv3.HttpConnectionManager, error) {
	m := &hcmv3.HttpConnectionManager{}
	if !f.GetTypedConfig().MessageIs(m) {
		return nil, nil
	}
	return m, f.GetTypedConfig().UnmarshalTo(m)
}
