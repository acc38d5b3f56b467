package translate

import (
	"math"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
)

// filterSettings returns the per-route configuration of HTTP filters.
func filterSettings(rule *networking.HTTPRoute) map[string]*anypb.Any {
	out := map[string]*anypb.Any{}
	if f := buildFault(rule.GetFault()); f != nil {
		out[faultFilterName] = anyOf(f)
	}
	if c := buildCORS(rule.GetCorsPolicy()); c != nil {
		out[corsFilterName] = anyOf(c)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func buildFault(in *networking.HTTPFaultInjection) *faultv3.HTTPFault {
	if in == nil {
		return nil
	}
	out := &faultv3.HTTPFault{}
	if d := in.GetDelay(); d.GetFixedDelay() != nil {
		//lint:ignore SA1019 the field is deprecated, but documents still use it
		share := faultShare(d.GetPercentage(), d.GetPercent())
		out.Delay = &commonfaultv3.FaultDelay{
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: d.GetFixedDelay()},
			Percentage:         share,
		}
	}
	out.Abort = buildAbort(in.GetAbort())
	if out.Delay == nil && out.Abort == nil {
		return nil
	}
	return out
}

func buildAbort(in *networking.HTTPFaultInjection_Abort) *faultv3.FaultAbort {
	out := &faultv3.FaultAbort{Percentage: fraction(in.GetPercentage(), 100)}
	switch e := in.GetErrorType().(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		out.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(e.HttpStatus)}
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		code, ok := grpcCode(e.GrpcStatus)
		if !ok {
			return nil
		}
		out.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: code}
	default:
		return nil
	}
	return out
}

// grpcCode parses a gRPC status: "UNAVAILABLE" or "14".
func grpcCode(s string) (uint32, bool) {
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return uint32(n), true
	}
	var c codes.Code
	if c.UnmarshalJSON([]byte(strconv.Quote(strings.ToUpper(s)))) != nil {
		return 0, false
	}
	return uint32(c), true
}

func faultShare(p *networking.Percent, old int32) *typev3.FractionalPercent {
	if p == nil && old > 0 {
		return fraction(nil, float64(old))
	}
	return fraction(p, 100)
}

// fraction returns a percentage with four decimal places, which is Envoy's maximum precision. If p is nil, the
// percentage is none.
func fraction(p *networking.Percent, none float64) *typev3.FractionalPercent {
	if p != nil {
		none = p.GetValue()
	}
	return &typev3.FractionalPercent{
		Numerator:   uint32(math.Round(min(max(none, 0), 100) * 10_000)),
		Denominator: typev3.FractionalPercent_MILLION,
	}
}

func runtimeFraction(p *networking.Percent, none float64) *corev3.RuntimeFractionalPercent {
	return &corev3.RuntimeFractionalPercent{DefaultValue: fraction(p, none)}
}

func buildCORS(in *networking.CorsPolicy) *corsv3.CorsPolicy {
	if in == nil {
		return nil
	}
	out := &corsv3.CorsPolicy{
		AllowMethods:     strings.Join(in.GetAllowMethods(), ","),
		AllowHeaders:     strings.Join(in.GetAllowHeaders(), ","),
		ExposeHeaders:    strings.Join(in.GetExposeHeaders(), ","),
		AllowCredentials: in.GetAllowCredentials(),
		FilterEnabled:    runtimeFraction(nil, 100),
	}
	if in.GetMaxAge() != nil {
		out.MaxAge = strconv.FormatInt(in.GetMaxAge().GetSeconds(), 10)
	}
	switch in.GetUnmatchedPreflights() {
	case networking.CorsPolicy_FORWARD:
		out.ForwardNotMatchingPreflights = boolean(true)
	case networking.CorsPolicy_IGNORE:
		out.ForwardNotMatchingPreflights = boolean(false)
	}
	for _, origin := range in.GetAllowOrigins() {
		m := stringMatch(origin)
		if m == nil {
			m = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regexMatcher(".*")}}
		}
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, m)
	}
	//lint:ignore SA1019 the field is deprecated, but documents still use it
	for _, origin := range in.GetAllowOrigin() {
		m := exact(origin)
		if origin == "*" {
			m = regex(".*")
		}
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, m)
	}
	return out
}
