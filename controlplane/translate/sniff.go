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

// defaultSniffTimeout bounds the wait for the first bytes where the server may speak first, if the mesh's configuration
// does not. Nobody in the mesh waits that long for mutual TLS, which starts with the client's bytes.
const defaultSniffTimeout = time.Second

// sniffedHTTP is what the inspector calls plaintext that is HTTP.
var sniffedHTTP = []string{"http/1.0", "http/1.1", "h2c"}

func httpInspector() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
}

// boundSniffing has a connection that says nothing go on as one of bytes, after a while.
func (v view) boundSniffing(l *listenerv3.Listener) {
	timeout := v.s.Mesh.GetProtocolDetectionTimeout().AsDuration()
	if timeout <= 0 {
		timeout = defaultSniffTimeout
	}
	l.ListenerFiltersTimeout = duration(timeout)
	l.ContinueOnListenerFiltersTimeout = true
}

// onlyOn keeps a listener filter from connections to other ports: what a declared port speaks need not be found out.
func onlyOn(f *listenerv3.ListenerFilter, except []uint32) *listenerv3.ListenerFilter {
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

// asCalled are the options of a cluster that is called by the protocol that its caller came with.
func asCalled() *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
		UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
			HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: http2Options(nil),
		},
	}}
}

// tellsBytes has the callee's sidecar know that a connection is one of bytes, where the cluster's own TLS says that it is
// one of requests: it does for ports of which nobody says what they speak.
func (v view) tellsBytes(to []share) []*listenerv3.Filter {
	for _, s := range to {
		if v.saysHTTP(s.cluster) {
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

// saysHTTP says whether a cluster's mutual TLS announces requests although connections of bytes may use it.
func (v view) saysHTTP(cluster string) bool {
	host, subset, number, ok := parseOutbound(cluster)
	if !ok {
		return false
	}
	svc := v.scope.Service(host)
	if svc == nil {
		return false
	}
	port, _ := svc.Port(number)
	return port.Protocol == registry.Undeclared && !originates(v.scope.DestinationRule(svc).Traffic(subset, number).TLS)
}
