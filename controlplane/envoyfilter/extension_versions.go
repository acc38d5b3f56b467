package envoyfilter

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// minEnvoyVersion maps an extension type to the first minor version of Envoy 1.x with which patches may use the type.
// It omits types that all supported versions have. The list of a version's types is in node.extensions of /server_info of
// its admin interface.
var minEnvoyVersion = map[protoreflect.FullName]uint32{
	"envoy.extensions.access_loggers.dynamic_modules.v3.DynamicModuleAccessLog":                        37,
	"envoy.extensions.access_loggers.filters.process_ratelimit.v3.ProcessRateLimitFilter":              37,
	"envoy.extensions.access_loggers.stats.v3.Config":                                                  37,
	"envoy.extensions.bootstrap.dynamic_modules.v3.DynamicModuleBootstrapExtension":                    37,
	"envoy.extensions.clusters.composite.v3.ClusterConfig":                                             37,
	"envoy.extensions.filters.http.mcp_router.v3.McpRouter":                                            37,
	"envoy.extensions.filters.http.proto_api_scrubber.v3.ProtoApiScrubberConfig":                       37,
	"envoy.extensions.filters.http.transform.v3.TransformConfig":                                       37,
	"envoy.extensions.filters.listener.dynamic_modules.v3.DynamicModuleListenerFilter":                 37,
	"envoy.extensions.filters.network.dynamic_modules.v3.DynamicModuleNetworkFilter":                   37,
	"envoy.extensions.filters.network.geoip.v3.Geoip":                                                  37,
	"envoy.extensions.filters.udp.dynamic_modules.v3.DynamicModuleUdpListenerFilter":                   37,
	"envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality":                             37,
	"envoy.extensions.local_address_selectors.filter_state_override.v3.Config":                         37,
	"envoy.extensions.matching.common_inputs.transport_socket.v3.EndpointMetadataInput":                37,
	"envoy.extensions.matching.common_inputs.transport_socket.v3.FilterStateInput":                     37,
	"envoy.extensions.matching.common_inputs.transport_socket.v3.LocalityMetadataInput":                37,
	"envoy.extensions.matching.common_inputs.transport_socket.v3.TransportSocketNameAction":            37,
	"envoy.extensions.quic.client_writer_factory.v3.DefaultClientWriter":                               37,
	"envoy.extensions.transport_sockets.tls.cert_mappers.sni.v3.SNI":                                   37,
	"envoy.extensions.transport_sockets.tls.cert_mappers.static_name.v3.StaticName":                    37,
	"envoy.extensions.transport_sockets.tls.cert_selectors.on_demand_secret.v3.Config":                 37,
	"envoy.extensions.clusters.dynamic_modules.v3.ClusterConfig":                                       38,
	"envoy.extensions.clusters.mcp_multicluster.v3.ClusterConfig":                                      38,
	"envoy.extensions.content_parsers.json.v3.JsonContentParser":                                       38,
	"envoy.extensions.filters.http.a2a.v3.A2a":                                                         38,
	"envoy.extensions.filters.http.file_server.v3.FileServerConfig":                                    38,
	"envoy.extensions.filters.http.mcp_json_rest_bridge.v3.McpJsonRestBridge":                          38,
	"envoy.extensions.filters.http.oauth2.v3.OAuth2PerRoute":                                           38,
	"envoy.extensions.filters.http.sse_to_metadata.v3.SseToMetadata":                                   38,
	"envoy.extensions.filters.listener.set_filter_state.v3.Config":                                     38,
	"envoy.extensions.filters.network.reverse_tunnel.v3.DrainAwareHttpConnectionManager":               38,
	"envoy.extensions.filters.network.tcp_bandwidth_limit.v3.TcpBandwidthLimit":                        38,
	"envoy.extensions.formatter.file_content.v3.FileContent":                                           38,
	"envoy.extensions.formatter.generic_secret.v3.GenericSecret":                                       38,
	"envoy.extensions.load_balancing_policies.dynamic_modules.v3.DynamicModulesLoadBalancerConfig":     38,
	"envoy.extensions.matching.common_inputs.stats.v3.StatTagValueInput":                               38,
	"envoy.extensions.matching.http.dynamic_modules.v3.HttpDynamicModuleMatchInput":                    38,
	"envoy.extensions.matching.input_matchers.dynamic_modules.v3.DynamicModuleMatcher":                 38,
	"envoy.extensions.network.dns_resolver.hickory.v3.HickoryDnsResolverConfig":                        38,
	"envoy.extensions.tracers.dynamic_modules.v3.DynamicModuleTracer":                                  38,
	"envoy.extensions.transport_sockets.tls.cert_mappers.filter_state_override.v3.Config":              38,
	"envoy.type.matcher.v3.HttpResponseLocalReplyMatchInput":                                           38,
	"envoy.extensions.clusters.original_dst.v3.OriginalDstCluster":                                     39,
	"envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManager":                           39,
	"envoy.extensions.filters.http.bandwidth_share.v3.BandwidthShare":                                  39,
	"envoy.extensions.filters.http.composite.v3.CompositePerRoute":                                     39,
	"envoy.extensions.filters.http.filter_chain.v3.FilterChainConfig":                                  39,
	"envoy.extensions.filters.http.filter_chain.v3.FilterChainConfigPerRoute":                          39,
	"envoy.extensions.filters.http.mcp_json_rest_bridge.v3.McpJsonRestBridgePerRoute":                  39,
	"envoy.extensions.filters.udp.udp_proxy.session.ext_authz.v3.FilterConfig":                         39,
	"envoy.extensions.formatter.dynamic_modules.v3.DynamicModuleFormatter":                             39,
	"envoy.extensions.health_checkers.dynamic_modules.v3.DynamicModuleHealthCheck":                     39,
	"envoy.extensions.load_balancing_policies.load_aware_locality.v3.LoadAwareLocality":                39,
	"envoy.extensions.network.socket_interface.sockmap.v3.Sockmap":                                     39,
	"envoy.extensions.stat_sinks.dynamic_modules.v3.DynamicModuleStatsSink":                            39,
	"envoy.extensions.transport_sockets.dynamic_modules.v3.DynamicModuleTransportSocket":               39,
	"envoy.extensions.upstreams.http.reverse_tunnel.v3.ReverseTunnelUpstreamCodecOptions":              39,
	"envoy.extensions.config.validators.dynamic_modules.v3.DynamicModuleConfigValidator":               40,
	"envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManagerPerRoute":                   40,
	"envoy.extensions.filters.http.aws_eventstream_parser.v3.AwsEventstreamParser":                     40,
	"envoy.extensions.filters.http.body_size_limit.v3.BodySizeLimit":                                   40,
	"envoy.extensions.health_checkers.udp.v3.UdpHealthCheck":                                           40,
	"envoy.extensions.http.ai_filters.request_info.v3.RequestInfo":                                     40,
	"envoy.extensions.http.ai_filters.schema_validation.v3.SchemaValidation":                           40,
	"envoy.extensions.http.ai_filters.transcoder.v3.Transcoder":                                        40,
	"envoy.extensions.http.early_header_mutation.dynamic_modules.v3.DynamicModuleEarlyHeaderMutation":  40,
	"envoy.extensions.http.header_formatters.dynamic_modules.v3.DynamicModuleHeaderFormatter":          40,
	"envoy.extensions.internal_redirect.filter_state.v3.FilterStateConfig":                             40,
	"envoy.extensions.matching.http.dynamic_modules.v3.DynamicModuleDataInput":                         40,
	"envoy.extensions.queue_policy.fifo.v3.FifoQueuePolicyConfig":                                      40,
	"envoy.extensions.rate_limit_descriptors.jwt_claim.v3.Descriptor":                                  40,
	"envoy.extensions.router.cluster_specifiers.dynamic_modules.v3.DynamicModuleClusterSpecifier":      40,
	"envoy.extensions.router.cluster_specifiers.priority_group.v3.PriorityGroupClusterSpecifier":       40,
	"envoy.extensions.router.route_specifiers.dynamic_modules.v3.DynamicModuleRouteSpecifier":          40,
	"envoy.extensions.transport_sockets.tls.handshakers.dynamic_modules.v3.DynamicModuleTlsHandshaker": 40,
	"envoy.extensions.watchdog.backtrace_action.v3.BacktraceActionConfig":                              40,
}

// newestType returns the extension type in a message that requires the newest Envoy, and the minor version that this
// type requires. The version is 0 if all supported versions have all types in the message.
func newestType(m proto.Message) (name protoreflect.FullName, minor uint32) {
	forEachPacked(m.ProtoReflect(), func(packed *anypb.Any) {
		if needs := minEnvoyVersion[packed.MessageName()]; needs > minor {
			name, minor = packed.MessageName(), needs
		}
	})
	return name, minor
}

// forEachPacked calls visit for all google.protobuf.Any messages within a message, recursively.
func forEachPacked(m protoreflect.Message, visit func(*anypb.Any)) {
	each := func(v protoreflect.Value) {
		inner := v.Message()
		if packed, ok := inner.Interface().(*anypb.Any); ok {
			visit(packed)
			content, err := packed.UnmarshalNew()
			if err != nil {
				return
			}
			inner = content.ProtoReflect()
		}
		forEachPacked(inner, visit)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { each(v); return true })
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				each(v.List().Get(i))
			}
		default:
			each(v)
		}
		return true
	})
}

// checkEnvoyVersion returns an error if the Envoy version does not support the patch. If the version is unknown, it
// returns nil.
func (p *patch) checkEnvoyVersion(envoy [3]uint32) error {
	if p.minMinor == 0 || envoy == [3]uint32{} || envoy[0] > 1 || envoy[1] >= p.minMinor {
		return nil
	}
	return fmt.Errorf("%s requires Envoy 1.%d or later; this is Envoy %d.%d", p.newestType, p.minMinor, envoy[0], envoy[1])
}
