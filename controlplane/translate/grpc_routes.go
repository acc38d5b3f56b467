package translate

import (
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// grpcRoutes converts routes for gRPC. It removes or rewrites fields that gRPC would reject or misinterpret. It does
// not remove fields that gRPC ignores: redirects, rewrites, header changes, mirrors and per-try timeouts.
func grpcRoutes(routes []*routev3.Route, authority string) []*routev3.Route {
	var out []*routev3.Route
	for _, route := range routes {
		for _, match := range grpcMatches(route.GetMatch(), authority) {
			if r := grpcRoute(route, match); r != nil {
				out = append(out, r)
			}
		}
	}
	return out
}

func grpcRoute(from *routev3.Route, match *routev3.RouteMatch) *routev3.Route {
	out := &routev3.Route{Name: from.GetName(), Match: match, Metadata: from.GetMetadata()}
	if f := from.GetTypedPerFilterConfig()[faultFilterName]; f != nil {
		out.TypedPerFilterConfig = map[string]*anypb.Any{faultFilterName: f}
	}
	switch action := from.GetAction().(type) {
	case *routev3.Route_Route:
		out.Action = &routev3.Route_Route{Route: grpcAction(action.Route)}
	case *routev3.Route_DirectResponse:
		// gRPC has no direct responses. A fault that aborts all requests has the same effect.
		out.TypedPerFilterConfig = map[string]*anypb.Any{faultFilterName: anyOf(&faultv3.HTTPFault{Abort: &faultv3.FaultAbort{
			ErrorType:  &faultv3.FaultAbort_HttpStatus{HttpStatus: action.DirectResponse.GetStatus()},
			Percentage: fraction(nil, 100),
		}})}
		out.Action = &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: BlackHoleCluster},
		}}
	default: // gRPC fails requests that match such a route, with an error that describes the cause
		out.Action = from.GetAction()
	}
	return out
}

func grpcAction(from *routev3.RouteAction) *routev3.RouteAction {
	out := &routev3.RouteAction{ClusterSpecifier: from.GetClusterSpecifier(), RetryPolicy: grpcRetries(from.GetRetryPolicy())}
	if weighted := from.GetWeightedClusters(); weighted != nil {
		w := &routev3.WeightedCluster{}
		for _, c := range weighted.GetClusters() {
			w.Clusters = append(w.Clusters, &routev3.WeightedCluster_ClusterWeight{Name: c.GetName(), Weight: c.GetWeight()})
		}
		out.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: w}
	}
	if from.GetTimeout().AsDuration() > 0 {
		out.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: from.GetTimeout()}
	}
	for _, h := range from.GetHashPolicy() {
		if h = grpcHashPolicy(h); h != nil {
			out.HashPolicy = append(out.HashPolicy, h)
		}
	}
	return out
}

// grpcHashPolicy returns the hash policy for gRPC. If Envoy would hash an address or a cookie, gRPC hashes the client's
// channel. It returns nil for all other policies except headers, because gRPC does not support them.
func grpcHashPolicy(from *routev3.RouteAction_HashPolicy) *routev3.RouteAction_HashPolicy {
	switch {
	case from.GetHeader() != nil:
		return from
	case from.GetConnectionProperties() != nil || from.GetCookie() != nil:
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_FilterState_{
			FilterState: &routev3.RouteAction_HashPolicy_FilterState{Key: "io.grpc.channel_id"},
		}}
	}
	return nil
}

func grpcRetries(from *routev3.RetryPolicy) *routev3.RetryPolicy {
	if from.GetNumRetries().GetValue() == 0 {
		return nil
	}
	out := &routev3.RetryPolicy{RetryOn: from.GetRetryOn(), NumRetries: from.GetNumRetries()}
	if b := from.GetRetryBackOff(); b.GetBaseInterval().AsDuration() > 0 {
		out.RetryBackOff = b
	}
	return out
}

// maxMatches limits the number of gRPC matches that replace one condition.
const maxMatches = 16

// grpcMatches returns matches that together are equivalent to one match of Envoy. It evaluates conditions on method,
// scheme and authority here, because it knows their values: gRPC requests are POST requests over HTTP to the target.
func grpcMatches(from *routev3.RouteMatch, authority string) []*routev3.RouteMatch {
	if len(from.GetQueryParameters()) > 0 {
		return nil // gRPC requests have no query parameters, so the condition cannot match
	}
	if slices.ContainsFunc(from.GetDynamicMetadata(), func(claim *matcherv3.MetadataMatcher) bool { return !claim.GetInvert() }) {
		return nil // gRPC libraries do not verify tokens, so the condition cannot match
	}
	known := map[string]string{":method": "POST", ":scheme": "http", ":authority": authority}
	base := proto.Clone(from).(*routev3.RouteMatch)
	base.Headers, base.DynamicMetadata = nil, nil
	out := []*routev3.RouteMatch{base}
	for _, h := range from.GetHeaders() {
		if value, ok := known[h.GetName()]; ok {
			if !headerMatches(h, value) {
				return nil
			}
			continue
		}
		if !h.GetInvertMatch() || h.GetStringMatch() == nil || len(out) > maxMatches/2 {
			out = withHeader(out, h)
			continue
		}
		// In gRPC a matcher never matches a missing header, even if it is inverted. In Envoy an inverted matcher
		// matches it.
		out = append(withHeader(out, &routev3.HeaderMatcher{
			Name: h.GetName(), InvertMatch: true, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}), withHeader(out, h)...)
	}
	return out
}

func withHeader(matches []*routev3.RouteMatch, header *routev3.HeaderMatcher) []*routev3.RouteMatch {
	out := make([]*routev3.RouteMatch, 0, len(matches))
	for _, m := range matches {
		m = proto.Clone(m).(*routev3.RouteMatch)
		m.Headers = append(m.Headers, header)
		out = append(out, m)
	}
	return out
}

func headerMatches(h *routev3.HeaderMatcher, value string) bool {
	return stringMatches(h.GetStringMatch(), value) != h.GetInvertMatch()
}

// stringMatches reports whether m matches the value of a header. If m is nil, only the presence of the header is
// required, so every value matches.
func stringMatches(m *matcherv3.StringMatcher, value string) bool {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return value == p.Exact
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(value, p.Prefix)
	case *matcherv3.StringMatcher_SafeRegex:
		re, err := regexp.Compile("^(?:" + p.SafeRegex.GetRegex() + ")$")
		return err == nil && re.MatchString(value)
	}
	return true
}
