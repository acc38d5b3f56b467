package translate

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previousv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	prioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// defaultRetryOn contains Istio's default retry conditions. Envoy retries if the request did not reach the workload, or
// if the response shows that a retry is safe.
const defaultRetryOn = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"

// retryPolicy returns the retry policy of a rule, or nil if the rule disables retries.
func (r routing) retryPolicy(in *networking.HTTPRetry) *routev3.RetryPolicy {
	if in == nil {
		in = r.mesh.GetDefaultHttpRetryPolicy()
	}
	out := &routev3.RetryPolicy{
		RetryOn:                       defaultRetryOn,
		NumRetries:                    u32(2),
		RetriableStatusCodes:          []uint32{http.StatusServiceUnavailable},
		HostSelectionRetryMaxAttempts: 5,
	}
	if in == nil || in.GetRetryIgnorePreviousHosts() == nil || in.GetRetryIgnorePreviousHosts().GetValue() {
		out.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: anyOf(&previousv3.PreviousHostsPredicate{})},
		}}
	}
	if in == nil {
		return out
	}
	if in.GetAttempts() <= 0 {
		return nil
	}
	out.NumRetries = u32(uint32(in.GetAttempts()))
	if in.GetRetryRemoteLocalities().GetValue() {
		out.RetryPriority = &routev3.RetryPolicy_RetryPriority{
			Name: "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
				TypedConfig: anyOf(&prioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 2}),
			},
		}
	}
	if in.GetRetryOn() != "" {
		out.RetryOn, out.RetriableStatusCodes = parseRetryOn(in.GetRetryOn())
	}
	out.PerTryTimeout = nonZeroDuration(in.GetPerTryTimeout())
	if b := nonZeroDuration(in.GetBackoff()); b != nil {
		out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: b}
	}
	return out
}

// parseRetryOn separates status codes from the other retry conditions, because Envoy has a separate field for them.
func parseRetryOn(s string) (string, []uint32) {
	var conditions []string
	var codes []uint32
	for _, item := range splitList(s) {
		if code, err := strconv.ParseUint(item, 10, 32); err == nil && code >= 100 && code < 600 {
			codes = append(codes, uint32(code))
		} else {
			conditions = append(conditions, item)
		}
	}
	if len(codes) > 0 && !slices.Contains(conditions, "retriable-status-codes") {
		conditions = append(conditions, "retriable-status-codes")
	}
	return strings.Join(conditions, ","), codes
}

func applyRewrite(action *routev3.RouteAction, in *networking.HTTPRewrite) {
	if in == nil {
		return
	}
	if in.GetUriRegexRewrite() != nil {
		action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{
			Pattern:      regexMatcher(in.GetUriRegexRewrite().GetMatch()),
			Substitution: in.GetUriRegexRewrite().GetRewrite(),
		}
	} else {
		action.PrefixRewrite = in.GetUri()
	}
	if in.GetAuthority() != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: in.GetAuthority()}
	}
}

// mirrorPolicies returns the destinations of mirrored requests.
func (r routing) mirrorPolicies(vs *snapshot.VirtualService, rule *networking.HTTPRoute) []*routev3.RouteAction_RequestMirrorPolicy {
	var out []*routev3.RouteAction_RequestMirrorPolicy
	add := func(d *networking.Destination, share *corev3.RuntimeFractionalPercent) {
		if d != nil && share.GetDefaultValue().GetNumerator() > 0 {
			out = append(out, &routev3.RouteAction_RequestMirrorPolicy{
				Cluster: r.cluster(d, vs.Namespace), RuntimeFraction: share, TraceSampled: boolean(false),
			})
		}
	}
	add(rule.GetMirror(), mirrorShare(rule))
	for _, m := range rule.GetMirrors() {
		add(m.GetDestination(), runtimeFraction(m.GetPercentage(), 100))
	}
	return out
}

func mirrorShare(rule *networking.HTTPRoute) *corev3.RuntimeFractionalPercent {
	//lint:ignore SA1019 the field is deprecated, but documents still use it
	if old := rule.GetMirrorPercent(); old != nil && rule.GetMirrorPercentage() == nil {
		return runtimeFraction(nil, float64(old.GetValue()))
	}
	return runtimeFraction(rule.GetMirrorPercentage(), 100)
}

func redirectAction(in *networking.HTTPRedirect, port uint32) *routev3.Route_Redirect {
	a := &routev3.RedirectAction{HostRedirect: in.GetAuthority(), ResponseCode: redirectCode(in.GetRedirectCode())}
	if in.GetScheme() != "" {
		a.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: in.GetScheme()}
	}
	switch p := in.GetRedirectPort().(type) {
	case *networking.HTTPRedirect_Port:
		a.PortRedirect = p.Port
	case *networking.HTTPRedirect_DerivePort:
		if p.DerivePort == networking.HTTPRedirect_FROM_REQUEST_PORT {
			a.PortRedirect = port
		}
	}
	switch {
	case in.GetPrefixRewrite() != "":
		a.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: in.GetPrefixRewrite()}
	case strings.HasPrefix(in.GetUri(), "%PREFIX()%"):
		a.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: strings.TrimPrefix(in.GetUri(), "%PREFIX()%")}
	case in.GetUri() != "":
		a.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: in.GetUri()}
	}
	return &routev3.Route_Redirect{Redirect: a}
}

func redirectCode(code uint32) routev3.RedirectAction_RedirectResponseCode {
	switch code {
	case http.StatusFound:
		return routev3.RedirectAction_FOUND
	case http.StatusSeeOther:
		return routev3.RedirectAction_SEE_OTHER
	case http.StatusTemporaryRedirect:
		return routev3.RedirectAction_TEMPORARY_REDIRECT
	case http.StatusPermanentRedirect:
		return routev3.RedirectAction_PERMANENT_REDIRECT
	}
	return routev3.RedirectAction_MOVED_PERMANENTLY
}

func directResponse(in *networking.HTTPDirectResponse) *routev3.Route_DirectResponse {
	a := &routev3.DirectResponseAction{Status: in.GetStatus()}
	switch body := in.GetBody().GetSpecifier().(type) {
	case *networking.HTTPBody_String_:
		a.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: body.String_}}
	case *networking.HTTPBody_Bytes:
		a.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: body.Bytes}}
	}
	return &routev3.Route_DirectResponse{DirectResponse: a}
}

// hashPolicies returns the hash policy of consistent hashing, if the destination's DestinationRule configures it.
func hashPolicies(t snapshot.Traffic) []*routev3.RouteAction_HashPolicy {
	hash := t.LoadBalancer.GetConsistentHash()
	switch key := hash.GetHashKey().(type) {
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		return []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{
			Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: key.HttpHeaderName},
		}}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		return []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_Cookie_{
			Cookie: hashCookie(key.HttpCookie),
		}}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		return []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: key.UseSourceIp},
		}}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		return []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: key.HttpQueryParameterName},
		}}}
	}
	return nil
}

func hashCookie(in *networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie) *routev3.RouteAction_HashPolicy_Cookie {
	c := &routev3.RouteAction_HashPolicy_Cookie{Name: in.GetName(), Path: in.GetPath(), Ttl: in.GetTtl()}
	for _, a := range in.GetAttributes() {
		c.Attributes = append(c.Attributes, &routev3.RouteAction_HashPolicy_CookieAttribute{Name: a.GetName(), Value: a.GetValue()})
	}
	return c
}

// unknownHostResponse is the response to requests for hosts outside the mesh if outbound traffic is limited to the mesh
// (outboundTrafficPolicy REGISTRY_ONLY).
func unknownHostResponse() *routev3.Route_DirectResponse {
	body := func(name string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "this workload sees no service " + name +
			", and its outboundTrafficPolicy is REGISTRY_ONLY: add a Service or a ServiceEntry for it, " +
			"let the workload see it (hosts of its Sidecar, exportTo), or correct the name and the port\n"}}
	}
	return &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
		Status: http.StatusBadGateway,
		// Envoy 1.36 ignores the format and uses the body. Later versions use only the format.
		Body: body("of this name"),
		BodyFormat: &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
			TextFormatSource: body("%REQ(:AUTHORITY)%"),
		}},
	}}
}
