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
)

// Callers tell the sidecar that they call which workload they are, in a header that no application sees. It is for metrics
// and logs: what anyone may do goes by certificates alone.
const (
	peerHeader = "x-pilotfish-peer"
	// peerMetadata is where a request's caller is kept, and where a listener says whose it is.
	peerMetadata = "pilotfish.peer"
	peerFilter   = "pilotfish.peer"
)

// peer is what is told of a workload.
type peer struct{ workload, namespace, app, version, service, revision, cluster string }

// peerField is a part of the header, and its key there and in what endpoints say of themselves.
type peerField struct {
	key, endpoint, label string
	histograms           bool
}

// peerFields are the parts of the header, in their order. Later versions add theirs at the end.
var peerFields = []peerField{
	{"workload", "name", "workload", true}, {"namespace", "namespace", "workload_namespace", true}, {"app", "app", "app", false},
	{"version", "version", "version", false}, {"service", "service", "canonical_service", false},
	{"revision", "revision", "canonical_revision", false}, {"cluster", "cluster", "cluster", false},
}

// unknown is what Istio's metrics have for the field where nothing is known of the other side.
func (f peerField) unknown() string {
	if f.key == "revision" {
		return latest
	}
	return unknown
}

func (p peer) header() string {
	return strings.Join([]string{p.workload, p.namespace, orElse(p.app, unknown), orElse(p.version, unknown), p.service, p.revision, orElse(p.cluster, unknown)}, ";")
}

// describe tells of a workload with these labels.
func describe(workload, namespace string, labels map[string]string) peer {
	first := func(names ...string) string {
		for _, n := range names {
			if labels[n] != "" {
				return plainName(labels[n])
			}
		}
		return ""
	}
	workload = plainName(workload)
	return peer{
		workload: workload, namespace: plainName(namespace), app: first("app", "app.kubernetes.io/name"), version: first("version", "app.kubernetes.io/version"),
		service:  orElse(first("service.istio.io/canonical-name", "app.kubernetes.io/name", "app"), workload),
		revision: orElse(first("service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"), latest),
		cluster:  orElse(first(clusterLabel), soleCluster),
	}
}

// clusterLabel says which Kubernetes cluster a workload is of, and soleCluster what the only one is called, as in Istio.
const (
	clusterLabel = "topology.istio.io/cluster"
	soleCluster  = "Kubernetes"
)

func (p *Proxy) peer() peer {
	out := describe(p.Workload, p.Namespace, p.Labels)
	if id := p.Metadata["CLUSTER_ID"]; id != "" {
		out.cluster = plainName(id)
	}
	return out
}

var notPlain = regexp.MustCompile(`[^A-Za-z0-9._/-]`)

// plainName keeps what nodes say of themselves from meaning anything else where it is written.
func plainName(s string) string {
	if len(s) > 253 {
		s = s[:253]
	}
	return notPlain.ReplaceAllString(s, "_")
}

// signed says on the listeners that traffic goes out by whose it is, and what metrics have for what nothing is known of.
func (p *Proxy) signed(listeners []*listenerv3.Listener) []*listenerv3.Listener {
	for _, l := range listeners {
		if l.GetTrafficDirection() == corev3.TrafficDirection_OUTBOUND {
			l.Metadata = filterMetadata(peerMetadata, map[string]string{"self": p.peer().header(), unknown: unknown, latest: latest})
		}
	}
	return listeners
}

// introduction has requests say which workload they are of. It is the same for all proxies: the listener that a request
// came by knows whose it is.
func introduction() []*corev3.HeaderValueOption {
	return []*corev3.HeaderValueOption{{
		Header:       &corev3.HeaderValue{Key: peerHeader, Value: "%METADATA(LISTENER:" + peerMetadata + ":self)%"},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}}
}

// introduce adds the introduction to a route as far as it leads to services of the mesh, and only there. What a gateway
// leads elsewhere loses that of the workload that called the gateway.
func (r routing) introduce(route *routev3.Route) *routev3.Route {
	action := route.GetRoute()
	// Copies are made of what is sent, introduction and all.
	copied := slices.ContainsFunc(action.GetRequestMirrorPolicies(), func(m *routev3.RouteAction_RequestMirrorPolicy) bool { return !r.inMesh(m.GetCluster()) })
	switch weighted := action.GetWeightedClusters().GetClusters(); {
	case action == nil:
	case copied || len(weighted) == 0 && !r.inMesh(action.GetCluster()):
		route.RequestHeadersToRemove = append(route.RequestHeadersToRemove, r.foreign()...)
	case len(weighted) == 0:
		route.RequestHeadersToAdd = append(route.RequestHeadersToAdd, introduction()...)
	default:
		for _, c := range weighted {
			if r.inMesh(c.GetName()) {
				c.RequestHeadersToAdd = append(c.RequestHeadersToAdd, introduction()...)
			} else {
				c.RequestHeadersToRemove = append(c.RequestHeadersToRemove, r.foreign()...)
			}
		}
	}
	return route
}

// foreign are the headers that requests come with and do not leave the mesh with. Applications have none to send.
func (r routing) foreign() []string {
	if r.gateway == snapshot.MeshGateway {
		return nil
	}
	return []string{peerHeader}
}

// unintroduced takes the introduction back where not every endpoint has a sidecar that would keep it from its application.
func unintroduced() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		httpFilter("envoy.filters.http.header_mutation", &headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{
			RequestMutations: []*mutationv3.HeaderMutation{{Action: &mutationv3.HeaderMutation_Remove{Remove: peerHeader}}},
		}}),
		httpFilter("envoy.filters.http.upstream_codec", &upstreamcodecv3.UpstreamCodec{}),
	}
}

// inMesh says whether a cluster is of a service of the mesh.
func (r routing) inMesh(cluster string) bool {
	host, _, _, ok := parseOutbound(cluster)
	if !ok {
		return false
	}
	svc := r.scope.Service(host)
	return svc != nil && !svc.External
}

// takesPeer says whether callers on a chain are believed what they say of themselves.
func (v view) takesPeer(t traffic) bool { return t.side == inboundSide && t.mtls }

// peerFilters read and remove what a caller says of itself.
func (v view) peerFilters(t traffic) []*hcmv3.HttpFilter {
	if !v.takesPeer(t) || !v.metrics(snapshot.AsServer).measured && len(v.telemetry().AccessLogs(snapshot.AsServer)) == 0 {
		return nil
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

// peerPattern finds a field of the header, if it is made of the characters that those of the mesh have. A value
// that matches nothing would be taken whole, and what is no text would spoil all metrics for whoever reads them.
func peerPattern(i int) string {
	return `^(?:(?:[^;]*;){` + strconv.Itoa(i) + `}([A-Za-z0-9._/-]*)(?:;.*)?$)?\C*`
}

// peerStruct is what endpoints tell of their workload.
func peerStruct(e snapshot.Endpoint) *structpb.Struct {
	p := describe(e.Workload, e.Namespace, e.Labels)
	return stringStruct(map[string]string{
		"name": p.workload, "namespace": p.namespace, "service": p.service, "revision": p.revision,
		"app": orElse(p.app, unknown), "version": orElse(p.version, unknown), "cluster": p.cluster,
	})
}
