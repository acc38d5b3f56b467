package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// retryConditions are Envoy's, for HTTP and for gRPC. Status codes are taken beside them.
var retryConditions = []string{
	"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited", "retriable-4xx", "refused-stream",
	"retriable-status-codes", "retriable-headers", "http3-post-connect-failure",
	"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable",
}

func (s scope) retries(r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	s.field("attempts").notNegative(r.GetAttempts())
	if r.GetAttempts() == 0 && (r.GetPerTryTimeout() != nil || r.GetRetryOn() != "") {
		s.warn("", "without attempts nothing is retried", "set attempts")
	}
	s.field("perTryTimeout").millisecond(r.GetPerTryTimeout())
	s.field("backoff").millisecond(r.GetBackoff())
	if r.GetRetryOn() == "" {
		return
	}
	for condition := range strings.SplitSeq(r.GetRetryOn(), ",") {
		condition = strings.TrimSpace(condition)
		if code, err := strconv.Atoi(condition); err == nil {
			if code < 100 || code > 599 {
				s.field("retryOn").refuse(condition, "not a status code", "give one between 100 and 599")
			}
		} else if !slices.Contains(retryConditions, condition) {
			s.field("retryOn").refuse(condition, "not a condition to retry on", didYouMean(condition, retryConditions))
		}
	}
}

func (s scope) fault(f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	if f.GetDelay() == nil && f.GetAbort() == nil {
		s.refuse("", "a fault needs a delay or an abort", "give it one, or remove it")
	}
	if delay := f.GetDelay(); delay != nil {
		at := s.field("delay")
		if delay.GetHttpDelayType() == nil {
			at.refuse("", "how long?", "set fixedDelay")
		}
		at.field("fixedDelay").millisecond(delay.GetFixedDelay())
		at.field("exponentialDelay").millisecond(delay.GetExponentialDelay())
		at.field("percentage").percentage(delay.GetPercentage())
		//lint:ignore SA1019 the field is deprecated, and documents have it
		at.field("percent").percent(float64(delay.GetPercent()))
	}
	if abort := f.GetAbort(); abort != nil {
		s.field("abort").abort(abort)
	}
}

// percentage checks a share that, unlike most, must be given: Istio injects nothing without it.
func (s scope) percentage(p *networking.Percent) {
	if p != nil {
		s.field("value").percent(p.GetValue())
	}
}

var grpcStatuses = []string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
	"UNAUTHENTICATED",
}

func (s scope) abort(abort *networking.HTTPFaultInjection_Abort) {
	s.field("percentage").percentage(abort.GetPercentage())
	switch e := abort.GetErrorType().(type) {
	case nil:
		s.refuse("", "abort with what?", "set httpStatus or grpcStatus")
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		s.field("httpStatus").between(int64(e.HttpStatus), 200, 599, "give a status code, as in 503")
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		if _, err := strconv.ParseUint(e.GrpcStatus, 10, 8); err != nil && !slices.Contains(grpcStatuses, e.GrpcStatus) {
			s.field("grpcStatus").refuse(e.GrpcStatus, "not a gRPC status", didYouMean(e.GrpcStatus, grpcStatuses))
		}
	case *networking.HTTPFaultInjection_Abort_Http2Error:
		s.field("http2Error").refuse(e.Http2Error, "cannot be injected", "set httpStatus or grpcStatus")
	}
}

func (s scope) mirrors(r *networking.HTTPRoute) {
	if r.GetMirror() != nil {
		s.field("mirror").destination(r.GetMirror())
		if len(r.GetMirrors()) > 0 {
			s.field("mirrors").refuse("", "mirror and mirrors exclude one another", "list all under mirrors")
		}
	}
	for i, m := range r.GetMirrors() {
		s.item("mirrors", i).field("destination").destination(m.GetDestination())
		s.item("mirrors", i).field("percentage").percentage(m.GetPercentage())
	}
	s.field("mirrorPercentage").percentage(r.GetMirrorPercentage())
	//lint:ignore SA1019 the field is deprecated, and documents have it
	s.field("mirrorPercent").percent(float64(r.GetMirrorPercent().GetValue()))
	//lint:ignore SA1019 the field is deprecated, and documents have it
	if r.GetMirror() == nil && (r.GetMirrorPercentage() != nil || r.GetMirrorPercent() != nil) {
		s.warn("", "a share of requests to mirror, and no mirror", "set mirror")
	}
}

func (s scope) headers(h *networking.Headers) {
	for name, ops := range map[string]*networking.Headers_HeaderOperations{"request": h.GetRequest(), "response": h.GetResponse()} {
		at := s.field(name)
		for header, value := range ops.GetSet() {
			at.field("set").key(header).headerOperation(header, value)
		}
		for header, value := range ops.GetAdd() {
			at.field("add").key(header).headerOperation(header, value)
		}
		for i, header := range ops.GetRemove() {
			at.item("remove", i).headerOperation(header, "")
		}
	}
}

func (s scope) cors(c *networking.CorsPolicy) {
	for i, o := range c.GetAllowOrigins() {
		s.item("allowOrigins", i).stringMatch(o)
	}
	s.field("allowMethods").headerValue(strings.Join(c.GetAllowMethods(), ","))
	s.field("allowHeaders").headerValue(strings.Join(c.GetAllowHeaders(), ","))
	s.field("exposeHeaders").headerValue(strings.Join(c.GetExposeHeaders(), ","))
}

func (s scope) headerOperation(header, value string) {
	s.headerName(header)
	if strings.HasPrefix(header, ":") && header != ":authority" {
		s.refuse(header, "this header is the request's own and cannot be changed here", "use rewrite for the path and the host")
	}
	s.headerValue(value)
}

// maxHeader is what Envoy takes as a header's value in its configuration.
const maxHeader = 16 << 10

// headerValue checks what goes into a header of a request or an answer, as paths and hosts do too.
func (s scope) headerValue(value string) {
	if strings.ContainsAny(value, "\r\n\x00") {
		s.refuse(value, "a header's value has no line breaks", "remove them")
	}
	// A percent sign that stands for itself is written twice for Envoy.
	if size := len(value) + strings.Count(value, "%"); size > maxHeader {
		s.refuse(value, fmt.Sprintf("%d bytes for a header, percent signs counted twice; at most %d are taken", size, maxHeader), "shorten it")
	}
}

func (s scope) rewrite(r *networking.HTTPRewrite) {
	s.field("uri").headerValue(r.GetUri())
	s.field("authority").headerValue(r.GetAuthority())
	s.field("uriRegexRewrite").field("rewrite").headerValue(r.GetUriRegexRewrite().GetRewrite())
	switch regex := r.GetUriRegexRewrite(); {
	case r.GetUri() == "" && r.GetAuthority() == "" && regex == nil:
		s.refuse("", "rewrite to what?", "set uri, authority or uriRegexRewrite")
	case regex != nil && r.GetUri() != "":
		s.refuse("", "uri and uriRegexRewrite exclude one another", "keep one")
	case regex != nil && regex.GetMatch() == "":
		s.field("uriRegexRewrite").field("match").refuse("", "no expression", "say what to replace")
	case regex != nil:
		s.field("uriRegexRewrite").field("match").regex(regex.GetMatch())
	}
}

func (s scope) redirect(r *networking.HTTPRedirect) {
	switch code := r.GetRedirectCode(); code {
	case 0, 301, 302, 303, 307, 308:
	default:
		s.field("redirectCode").refuse(code, "not a status that redirects", "one of: 301, 302, 303, 307, 308")
	}
	if r.GetUri() == "" && r.GetAuthority() == "" && r.GetScheme() == "" && r.GetRedirectPort() == nil && r.GetPrefixRewrite() == "" {
		s.refuse("", "redirect to where?", "set uri, authority, scheme or port")
	}
	s.field("uri").headerValue(r.GetUri())
	s.field("authority").headerValue(r.GetAuthority())
	s.field("prefixRewrite").headerValue(r.GetPrefixRewrite())
	if port, ok := r.GetRedirectPort().(*networking.HTTPRedirect_Port); ok {
		s.field("port").port(port.Port)
	}
	if scheme := r.GetScheme(); scheme != "" && scheme != "http" && scheme != "https" {
		s.field("scheme").refuse(scheme, "not a scheme", "one of: http, https")
	}
}

// MaxDirectResponse is the most that a directResponse may have as its body.
const MaxDirectResponse = 1 << 20

func (s scope) directResponse(r *networking.HTTPDirectResponse) {
	s.field("status").between(int64(r.GetStatus()), 200, 599, "give a status code, as in 503")
	if size := max(len(r.GetBody().GetString_()), len(r.GetBody().GetBytes())); size > MaxDirectResponse {
		s.field("body").refuse(size, "more than 1 MiB", "serve it from a workload")
	}
}
