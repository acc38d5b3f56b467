package translate

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	headertometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	upstreamcodecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

// A sidecar sends the metadata of its workload to the upstream sidecar in a header. The upstream sidecar removes the
// header before the request reaches the application. Peer metadata is used only for metrics and logs; authorization
// depends only on certificates.
const (
	peerHeader = "x-pilotfish-peer"
	// peerMetadata is a metadata namespace. In a request's metadata, it describes the client. In a listener's metadata,
	// it describes the proxy's own workload.
	peerMetadata = "pilotfish.peer"
	peerFilter   = "pilotfish.peer"
)

// peer is the peer metadata of a workload.
type peer struct{ workload, namespace, app, version, service, revision, cluster string }

// peerField is one field of the header. key is its key in the request's metadata, endpoint its key in endpoint
// metadata, and label the metric label that it sets.
type peerField struct {
	key, endpoint, label string
	histograms           bool
}

// peerFields lists the fields of the header in order. New fields must be at the end, because other versions of sidecars
// rely on the order.
var peerFields = []peerField{
	{"workload", "name", "workload", true}, {"namespace", "namespace", "workload_namespace", true}, {"app", "app", "app", false},
	{"version", "version", "version", false}, {"service", "service", "canonical_service", false},
	{"revision", "revision", "canonical_revision", false}, {"cluster", "cluster", "cluster", false},
}

// unknown returns the label value that Istio's metrics have if the peer is unknown.
func (f peerField) unknown() string {
	if f.key == "revision" {
		return latest
	}
	return unknown
}

// fields returns the values of the peerFields.
func (p peer) fields() []string {
	return []string{p.workload, p.namespace, orElse(p.app, unknown), orElse(p.version, unknown), p.service, p.revision, orElse(p.cluster, unknown)}
}

func (p peer) header() string {
	return strings.Join(p.fields(), exposition.PackedSeparator)
}

// newPeer returns the peer metadata of the workload that is called workload and has these labels.
func newPeer(workload, namespace string, labels map[string]string) peer {
	first := func(names ...string) string {
		for _, n := range names {
			if labels[n] != "" {
				return sanitizeName(labels[n])
			}
		}
		return ""
	}
	workload = sanitizeName(workload)
	return peer{
		workload: workload, namespace: sanitizeName(namespace), app: first("app", "app.kubernetes.io/name"), version: first("version", "app.kubernetes.io/version"),
		service:  orElse(first("service.istio.io/canonical-name", "app.kubernetes.io/name", "app"), workload),
		revision: orElse(first("service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"), latest),
		cluster:  orElse(first(clusterLabel), defaultClusterName),
	}
}

// clusterLabel is the label with the Kubernetes cluster of a workload. defaultClusterName is Istio's default cluster
// name.
const (
	clusterLabel       = "topology.istio.io/cluster"
	defaultClusterName = "Kubernetes"
)

func (p *Proxy) peer() peer {
	out := newPeer(p.Workload, p.Namespace, p.Labels)
	if id := p.Metadata["CLUSTER_ID"]; id != "" {
		out.cluster = sanitizeName(id)
	}
	return out
}

var invalidNameChars = regexp.MustCompile(`[^A-Za-z0-9._/-]`)

// sanitizeName truncates a value of node metadata to 253 bytes, and replaces the characters that have a meaning in
// formats or headers with "_".
func sanitizeName(s string) string {
	if len(s) > 253 {
		s = s[:253]
	}
	return invalidNameChars.ReplaceAllString(s, "_")
}

// addPeerMetadata sets the metadata of outbound listeners: the value of the peer header, and the default values of
// metric labels.
func (p *Proxy) addPeerMetadata(listeners []*listenerv3.Listener) []*listenerv3.Listener {
	for _, l := range listeners {
		if l.GetTrafficDirection() == corev3.TrafficDirection_OUTBOUND {
			l.Metadata = filterMetadata(peerMetadata, map[string]string{"self": p.peer().header(), unknown: unknown, latest: latest})
		}
	}
	return listeners
}

// peerMetadataHeader returns the header definition that adds the peer metadata to requests. The definition is the same
// for all proxies, so that they can share routes: each proxy reads the value from the metadata of its listener.
func peerMetadataHeader() []*corev3.HeaderValueOption {
	return []*corev3.HeaderValueOption{{
		Header:       &corev3.HeaderValue{Key: peerHeader, Value: "%METADATA(LISTENER:" + peerMetadata + ":self)%"},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}}
}

// addPeerHeader adds the peer header to the requests that a route sends to mesh services. At a gateway it removes the
// header from requests to other destinations, because a client may have sent it.
func (r routing) addPeerHeader(route *routev3.Route) *routev3.Route {
	action := route.GetRoute()
	// A mirrored request is a copy with the same headers, so mirror destinations count as destinations too.
	copied := slices.ContainsFunc(action.GetRequestMirrorPolicies(), func(m *routev3.RouteAction_RequestMirrorPolicy) bool { return !r.isInMesh(m.GetCluster()) })
	switch weighted := action.GetWeightedClusters().GetClusters(); {
	case action == nil:
	case copied || len(weighted) == 0 && !r.isInMesh(action.GetCluster()):
		route.RequestHeadersToRemove = append(route.RequestHeadersToRemove, r.headersToRemove()...)
	case len(weighted) == 0:
		route.RequestHeadersToAdd = append(route.RequestHeadersToAdd, peerMetadataHeader()...)
	default:
		for _, c := range weighted {
			if r.isInMesh(c.GetName()) {
				c.RequestHeadersToAdd = append(c.RequestHeadersToAdd, peerMetadataHeader()...)
			} else {
				c.RequestHeadersToRemove = append(c.RequestHeadersToRemove, r.headersToRemove()...)
			}
		}
	}
	return route
}

// headersToRemove returns the headers that a gateway removes: the peer header, because a client may have sent it and it
// must not leave the mesh. It returns nil for a sidecar, whose application receives no peer header that it could
// forward.
func (r routing) headersToRemove() []string {
	if r.gateway == snapshot.MeshGateway {
		return nil
	}
	return []string{peerHeader}
}

// removePeerHeaderFilters returns filters that remove the peer header from requests. They are necessary if some
// endpoints have no sidecar that would remove it.
func removePeerHeaderFilters() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		httpFilter("envoy.filters.http.header_mutation", &headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{
			RequestMutations: []*mutationv3.HeaderMutation{{Action: &mutationv3.HeaderMutation_Remove{Remove: peerHeader}}},
		}}),
		httpFilter("envoy.filters.http.upstream_codec", &upstreamcodecv3.UpstreamCodec{}),
	}
}

// isInMesh reports whether a cluster belongs to a mesh service.
func (r routing) isInMesh(cluster string) bool {
	host, _, _, ok := parseOutbound(cluster)
	if !ok {
		return false
	}
	svc := r.scope.Service(host)
	return svc != nil && !svc.External
}

// trustsPeerHeader reports whether the proxy uses the peer header that the clients of a chain send.
func (v proxyView) trustsPeerHeader(t traffic) bool { return t.side == inboundSide && t.mtls }

// peerFilters returns filters that read the peer header into metadata and remove it.
func (v proxyView) peerFilters(t traffic) []*hcmv3.HttpFilter {
	if !v.trustsPeerHeader(t) || !v.metrics(snapshot.AsServer).enabled && len(v.telemetry().AccessLogs(snapshot.AsServer)) == 0 {
		return nil
	}
	if v.packsLabels(chain{t, true}) && v.p.isEnvoyAtLeast(1, 40) {
		return []*hcmv3.HttpFilter{packedPeerFilter()}
	}
	config := &headertometadatav3.Config{}
	for i, f := range peerFields {
		config.RequestRules = append(config.RequestRules, &headertometadatav3.Config_Rule{
			Header: peerHeader,
			OnHeaderPresent: &headertometadatav3.Config_KeyValuePair{
				MetadataNamespace: peerMetadata, Key: f.key,
				RegexValueRewrite: &matcherv3.RegexMatchAndSubstitute{
					Pattern:      &matcherv3.RegexMatcher{Regex: peerPattern(i)},
					Substitution: `\1`,
				},
			},
			OnHeaderMissing: &headertometadatav3.Config_KeyValuePair{MetadataNamespace: peerMetadata, Key: f.key, Value: f.unknown()},
			Remove:          i == len(peerFields)-1,
		})
	}
	return []*hcmv3.HttpFilter{httpFilter(peerFilter, config)}
}

// peerPattern returns an expression that matches field i of the header. It accepts only the allowed characters, because
// invalid UTF-8 in a label would make all metrics unreadable. The expression also matches an invalid header, because
// Envoy would otherwise use the complete header as the value.
func peerPattern(i int) string {
	return `^(?:(?:[^;]*;){` + strconv.Itoa(i) + `}([A-Za-z0-9._/-]*)(?:;.*)?$)?\C*`
}

// peerStruct returns the peer metadata of an endpoint.
func peerStruct(e snapshot.Endpoint) *structpb.Struct {
	p := newPeer(e.Workload, e.Namespace, e.Labels)
	return stringStruct(map[string]string{
		"name": p.workload, "namespace": p.namespace, "service": p.service, "revision": p.revision,
		"app": orElse(p.app, unknown), "version": orElse(p.version, unknown), "cluster": p.cluster,
		packedKey: joinOne(p.fields()...),
	})
}
