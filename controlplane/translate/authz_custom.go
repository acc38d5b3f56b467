package translate

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// authorizer is an external authorization service that the mesh configuration defines and that the proxy can reach.
type authorizer struct {
	name, cluster, host string
	grpc                *meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider
	http                *meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider
}

// authorizers returns all authorizers that the proxy can reach, in the order of the mesh configuration. Their filters
// are always present, so that a change of a policy affects only routes. New routes apply to the next request, even on
// open connections. New filters would apply only to new connections.
func (v proxyView) authorizers() []authorizer {
	var out []authorizer
	for _, p := range v.s.Mesh.GetExtensionProviders() {
		if a, ok := v.authorizer(p.GetName()); ok && !slices.ContainsFunc(out, func(o authorizer) bool { return o.name == a.name }) {
			out = append(out, a)
		}
	}
	return out
}

// authorizer returns the authorizer of the extension provider that is called name. It returns false if there is no such
// provider, its service is not visible to the proxy, or its configuration is invalid.
func (v proxyView) authorizer(name string) (authorizer, bool) {
	p := snapshot.FindProvider(v.s.Mesh, name)
	service, port := snapshot.ProviderService(p)
	if service == "" {
		return authorizer{}, false
	}
	_, host := snapshot.SplitProviderService(service)
	svc := v.scope.ServiceByName(host)
	if svc == nil || !snapshot.IsProviderService(svc, service) {
		return authorizer{}, false
	}
	if _, ok := svc.Port(port); !ok {
		return authorizer{}, false
	}
	a := authorizer{
		name: name, cluster: OutboundCluster(svc.Hostname, "", port), host: net.JoinHostPort(svc.Hostname, strconv.Itoa(int(port))),
		grpc: p.GetEnvoyExtAuthzGrpc(), http: p.GetEnvoyExtAuthzHttp(),
	}
	return a, a.httpConfig().Validate() == nil
}

func customFilterName(provider string) string { return "envoy.filters.http.rbac.custom." + provider }
func customPrefix(provider string) string     { return "custom_" + provider + "_" }

// customFilters returns two filters for each authorizer: the first marks the requests that require a check, the second
// sends the marked requests to the authorizer.
func (v proxyView) customFilters() []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	for _, a := range v.authorizers() {
		out = append(out,
			httpFilter(customFilterName(a.name), &httprbacv3.RBAC{ShadowRulesStatPrefix: customPrefix(a.name)}),
			httpFilter("envoy.filters.http.ext_authz."+a.name, a.httpConfig()))
	}
	return out
}

// denyUnchecked adds policies to deny, which may be nil. They deny requests that match rules but were not marked for a
// check by the provider. Such requests occur on connections that were opened before the provider was configured: these
// connections still use the old filters, which do not mark requests.
func denyUnchecked(deny, rules *rbacv3.RBAC, provider string) *rbacv3.RBAC {
	if deny == nil {
		deny = &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
	}
	unseen := &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: &rbacv3.Principal{
		Identifier: &rbacv3.Principal_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{
			MetadataMatcher: matchRequiresCheck("envoy.filters.http.rbac", provider),
		}},
	}}}
	for name, policy := range rules.Policies {
		deny.Policies["unasked-"+provider+"-"+name] = &rbacv3.Policy{
			Permissions: policy.Permissions,
			Principals:  []*rbacv3.Principal{andIDs([]*rbacv3.Principal{orPrincipals(policy.Principals), unseen})},
		}
	}
	return deny
}

// matchRequiresCheck matches the dynamic metadata of requests that the RBAC filter has marked for a check by the
// provider.
func matchRequiresCheck(filter, provider string) *matcherv3.MetadataMatcher {
	return metadataMatcher(filter, []string{customPrefix(provider) + "shadow_engine_result"}, stringValue(exact("denied")))
}

func (a authorizer) httpConfig() *extauthzv3.ExtAuthz {
	out := &extauthzv3.ExtAuthz{
		TransportApiVersion:   corev3.ApiVersion_V3,
		FilterEnabledMetadata: matchRequiresCheck("envoy.filters.http.rbac", a.name),
		StatPrefix:            a.name,
	}
	if a.grpc != nil {
		out.FailureModeAllow, out.ClearRouteCache = a.grpc.GetFailOpen(), a.grpc.GetClearRouteCache()
		out.StatusOnError = statusOnError(a.grpc.GetStatusOnError())
		out.WithRequestBody = bodyInCheck(a.grpc.GetIncludeRequestBodyInCheck())
		out.Services = &extauthzv3.ExtAuthz_GrpcService{GrpcService: a.grpcService()}
		out.IncludePeerCertificate = true
		return out
	}
	out.FailureModeAllow, out.ClearRouteCache = a.http.GetFailOpen(), a.http.GetClearRouteCache()
	out.StatusOnError = statusOnError(a.http.GetStatusOnError())
	out.WithRequestBody = bodyInCheck(a.http.GetIncludeRequestBodyInCheck())
	//lint:ignore SA1019 the field is deprecated, but mesh configurations still use it
	out.AllowedHeaders = headerPatterns(slices.Concat(a.http.GetIncludeRequestHeadersInCheck(), a.http.GetIncludeHeadersInCheck()))
	out.Services = &extauthzv3.ExtAuthz_HttpService{HttpService: a.httpService()}
	return out
}

// authzTimeout is the default timeout of a check, as in Istio.
const authzTimeout = 600 * time.Second

func authzTimeoutOrDefault(d *durationpb.Duration) *durationpb.Duration {
	if d == nil {
		return duration(authzTimeout)
	}
	return d
}

func (a authorizer) grpcService() *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: a.cluster, Authority: a.host}},
		Timeout:         authzTimeoutOrDefault(a.grpc.GetTimeout()),
	}
}

func (a authorizer) httpService() *extauthzv3.HttpService {
	out := &extauthzv3.HttpService{
		ServerUri: &corev3.HttpUri{
			Uri: "http://" + a.host, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: a.cluster}, Timeout: authzTimeoutOrDefault(a.http.GetTimeout()),
		},
		PathPrefix:           a.http.GetPathPrefix(),
		AuthorizationRequest: &extauthzv3.AuthorizationRequest{},
		AuthorizationResponse: &extauthzv3.AuthorizationResponse{
			AllowedUpstreamHeaders:        headerPatterns(a.http.GetHeadersToUpstreamOnAllow()),
			AllowedClientHeaders:          headerPatterns(a.http.GetHeadersToDownstreamOnDeny()),
			AllowedClientHeadersOnSuccess: headerPatterns(a.http.GetHeadersToDownstreamOnAllow()),
		},
	}
	for _, name := range slices.Sorted(maps.Keys(a.http.GetIncludeAdditionalHeadersInCheck())) {
		out.AuthorizationRequest.HeadersToAdd = append(out.AuthorizationRequest.HeadersToAdd,
			&corev3.HeaderValue{Key: name, Value: a.http.GetIncludeAdditionalHeadersInCheck()[name]})
	}
	return out
}

func headerPatterns(names []string) *matcherv3.ListStringMatcher {
	if len(names) == 0 {
		return nil
	}
	out := &matcherv3.ListStringMatcher{}
	for _, name := range names {
		m := parsePattern(strings.ToLower(name)).matcher()
		m.IgnoreCase = m.GetSafeRegex() == nil
		out.Patterns = append(out.Patterns, m)
	}
	return out
}

func bodyInCheck(b *meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody) *extauthzv3.BufferSettings {
	if b == nil {
		return nil
	}
	return &extauthzv3.BufferSettings{
		MaxRequestBytes: b.GetMaxRequestBytes(), AllowPartialMessage: b.GetAllowPartialMessage(), PackAsBytes: b.GetPackAsBytes(),
	}
}

// statusOnError parses a status code. If text is not a valid code, it returns nil, for which Envoy uses 403.
func statusOnError(text string) *typev3.HttpStatus {
	code, err := strconv.ParseInt(text, 10, 32)
	if err != nil || code == 0 || typev3.StatusCode_name[int32(code)] == "" {
		return nil
	}
	return &typev3.HttpStatus{Code: typev3.StatusCode(code)}
}

// networkFilter returns the filter that checks TCP connections.
func (a authorizer) networkFilter() *listenerv3.Filter {
	return networkFilter("envoy.filters.network.ext_authz", &networkauthzv3.ExtAuthz{
		StatPrefix: "tcp." + a.name, GrpcService: a.grpcService(), FailureModeAllow: a.grpc.GetFailOpen(),
		TransportApiVersion: corev3.ApiVersion_V3, IncludePeerCertificate: true,
		FilterEnabledMetadata: matchRequiresCheck("envoy.filters.network.rbac", a.name),
	})
}
