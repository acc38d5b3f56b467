package translate

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	sfscommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	sfsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// defaultSniffTimeout is the default limit of the wait for the client's first bytes on ports where the server may send
// first. It does not delay mutual TLS connections, because on these the client sends first.
const defaultSniffTimeout = time.Second

// sniffedHTTP returns those application protocols of the HTTP inspector that the proxy processes as HTTP.
func (p *Proxy) sniffedHTTP() []string {
	if p.AcceptsHTTP10 {
		return []string{"http/1.0", "http/1.1", "h2c"}
	}
	return []string{"http/1.1", "h2c"}
}

func httpInspector() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
}

// setSniffTimeout makes Envoy process a connection as TCP if the client sends no bytes within the timeout.
func (v proxyView) setSniffTimeout(l *listenerv3.Listener) {
	timeout := v.s.Mesh.GetProtocolDetectionTimeout().AsDuration()
	if timeout <= 0 {
		timeout = defaultSniffTimeout
	}
	l.ListenerFiltersTimeout = duration(timeout)
	l.ContinueOnListenerFiltersTimeout = true
}

// disableOnPorts disables a listener filter on the ports in except, which have a declared protocol.
func disableOnPorts(f *listenerv3.ListenerFilter, except []uint32) *listenerv3.ListenerFilter {
	var rules []*listenerv3.ListenerFilterChainMatchPredicate
	for _, port := range except {
		rules = append(rules, &listenerv3.ListenerFilterChainMatchPredicate{
			Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
				DestinationPortRange: &typev3.Int32Range{Start: int32(port), End: int32(port) + 1},
			},
		})
	}
	switch len(rules) {
	case 0:
	case 1:
		f.FilterDisabled = rules[0]
	default:
		f.FilterDisabled = &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
			OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
		}}
	}
	return f
}

// downstreamProtocolOptions returns the options of a cluster that uses the same protocol as the downstream connection.
func downstreamProtocolOptions() *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
		UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
			HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: http2Options(nil),
		},
	}}
}

// tcpALPNFilters returns filters that make the upstream sidecar process a connection as TCP. They are necessary if the
// cluster's ALPN announces HTTP, as for ports without a declared protocol.
func (v proxyView) tcpALPNFilters(to []clusterWeight) []*listenerv3.Filter {
	for _, s := range to {
		if v.announcesHTTP(s.cluster) {
			return []*listenerv3.Filter{networkFilter("envoy.filters.network.set_filter_state", &sfsv3.Config{
				OnNewConnection: []*sfscommonv3.FilterStateValue{{
					Key: &sfscommonv3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
					Value: &sfscommonv3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
						Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
							Specifier: &corev3.DataSource_InlineString{InlineString: "istio"},
						}},
					}},
					SharedWithUpstream: sfscommonv3.FilterStateValue_ONCE,
				}},
			})}
		}
	}
	return nil
}

// announcesHTTP reports whether a cluster's ALPN announces HTTP although TCP connections may use the cluster.
func (v proxyView) announcesHTTP(cluster string) bool {
	host, subset, number, ok := parseOutbound(cluster)
	if !ok {
		return false
	}
	svc := v.scope.Service(host)
	if svc == nil {
		return false
	}
	port, _ := svc.Port(number)
	return port.Protocol == registry.Undeclared && !isTLSOrigination(v.scope.DestinationRule(svc).Traffic(subset, number).TLS)
}
