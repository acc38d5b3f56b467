package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// retryConditions lists Envoy's retry conditions for HTTP and gRPC. Status codes are also valid conditions.
var retryConditions = []string{
	"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited", "retriable-4xx", "refused-stream",
	"retriable-status-codes", "retriable-headers", "http3-post-connect-failure",
	"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable",
}

func (s validator) checkRetries(r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	s.field("attempts").checkNotNegative(r.GetAttempts())
	if r.GetAttempts() == 0 && (r.GetPerTryTimeout() != nil || r.GetRetryOn() != "") {
		s.warn("", "without attempts, Envoy does not retry", "set attempts")
	}
	s.field("perTryTimeout").checkMilliseconds(r.GetPerTryTimeout())
	s.field("backoff").checkMilliseconds(r.GetBackoff())
	if r.GetRetryOn() == "" {
		return
	}
	for condition := range strings.SplitSeq(r.GetRetryOn(), ",") {
		condition = strings.TrimSpace(condition)
		if code, err := strconv.Atoi(condition); err == nil {
			if code < 100 || code > 599 {
				s.field("retryOn").refuse(condition, "not a status code", "set one between 100 and 599")
			}
		} else if !slices.Contains(retryConditions, condition) {
			s.field("retryOn").refuse(condition, "not a retry condition", didYouMean(condition, retryConditions))
		}
	}
}

func (s validator) checkFault(f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	if f.GetDelay() == nil && f.GetAbort() == nil {
		s.refuse("", "a fault needs a delay or an abort", "set one of them, or remove the fault")
	}
	if delay := f.GetDelay(); delay != nil {
		at := s.field("delay")
		if delay.GetHttpDelayType() == nil {
			at.refuse("", "the duration of the delay is missing", "set fixedDelay")
		}
		at.field("fixedDelay").checkMilliseconds(delay.GetFixedDelay())
		at.field("exponentialDelay").checkMilliseconds(delay.GetExponentialDelay())
		at.field("percentage").checkPercentage(delay.GetPercentage())
		//lint:ignore SA1019 the field is deprecated, but documents still use it
		at.field("percent").checkPercent(float64(delay.GetPercent()))
	}
	if abort := f.GetAbort(); abort != nil {
		s.field("abort").checkAbort(abort)
	}
}

// checkPercentage checks that p is nil or a valid percentage.
func (s validator) checkPercentage(p *networking.Percent) {
	if p != nil {
		s.field("value").checkPercent(p.GetValue())
	}
}

var grpcStatuses = []string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
	"UNAUTHENTICATED",
}

func (s validator) checkAbort(abort *networking.HTTPFaultInjection_Abort) {
	s.field("percentage").checkPercentage(abort.GetPercentage())
	switch e := abort.GetErrorType().(type) {
	case nil:
		s.refuse("", "the status of the abort is missing", "set httpStatus or grpcStatus")
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		s.field("httpStatus").checkRange(int64(e.HttpStatus), 200, 599, "set a status code, as in 503")
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		if _, err := strconv.ParseUint(e.GrpcStatus, 10, 8); err != nil && !slices.Contains(grpcStatuses, e.GrpcStatus) {
			s.field("grpcStatus").refuse(e.GrpcStatus, "not a gRPC status", didYouMean(e.GrpcStatus, grpcStatuses))
		}
	case *networking.HTTPFaultInjection_Abort_Http2Error:
		s.field("http2Error").refuse(e.Http2Error, "Envoy cannot inject this error", "set httpStatus or grpcStatus")
	}
}

func (s validator) checkMirrors(r *networking.HTTPRoute) {
	if r.GetMirror() != nil {
		s.field("mirror").checkDestination(r.GetMirror())
		if len(r.GetMirrors()) > 0 {
			s.field("mirrors").refuse("", "mirror and mirrors exclude each other", "list all destinations under mirrors")
		}
	}
	for i, m := range r.GetMirrors() {
		s.item("mirrors", i).field("destination").checkDestination(m.GetDestination())
		s.item("mirrors", i).field("percentage").checkPercentage(m.GetPercentage())
	}
	s.field("mirrorPercentage").checkPercentage(r.GetMirrorPercentage())
	//lint:ignore SA1019 the field is deprecated, but documents still use it
	s.field("mirrorPercent").checkPercent(float64(r.GetMirrorPercent().GetValue()))
	//lint:ignore SA1019 the field is deprecated, but documents still use it
	if r.GetMirror() == nil && (r.GetMirrorPercentage() != nil || r.GetMirrorPercent() != nil) {
		s.warn("", "mirrorPercentage has no effect without mirror", "set mirror")
	}
}

func (s validator) checkHeaders(h *networking.Headers) {
	for name, ops := range map[string]*networking.Headers_HeaderOperations{"request": h.GetRequest(), "response": h.GetResponse()} {
		at := s.field(name)
		for header, value := range ops.GetSet() {
			at.field("set").key(header).checkHeaderOperation(header, value)
		}
		for header, value := range ops.GetAdd() {
			at.field("add").key(header).checkHeaderOperation(header, value)
		}
		for i, header := range ops.GetRemove() {
			at.item("remove", i).checkHeaderOperation(header, "")
		}
	}
}

func (s validator) checkCORS(c *networking.CorsPolicy) {
	for i, o := range c.GetAllowOrigins() {
		s.item("allowOrigins", i).checkStringMatch(o)
	}
	s.field("allowMethods").checkHeaderValue(strings.Join(c.GetAllowMethods(), ","))
	s.field("allowHeaders").checkHeaderValue(strings.Join(c.GetAllowHeaders(), ","))
	s.field("exposeHeaders").checkHeaderValue(strings.Join(c.GetExposeHeaders(), ","))
	s.warnInvalidHeaders("allowHeaders", c.GetAllowHeaders())
	s.warnInvalidHeaders("exposeHeaders", c.GetExposeHeaders())
}

// warnInvalidHeaders warns of each item of names, the list in field, that cannot be the name of a header.
func (s validator) warnInvalidHeaders(field string, names []string) {
	for i, name := range names {
		if !headerToken.MatchString(name) || strings.HasPrefix(name, ":") {
			s.item(field, i).warnNoEffect(name, "not the name of a header, so it matches none", "use letters, digits and '-'; list each name separately")
		}
	}
}

func (s validator) checkHeaderOperation(header, value string) {
	s.checkHeaderName(header)
	if strings.HasPrefix(header, ":") && header != ":authority" {
		s.refuse(header, "the rule cannot change this header, because it is part of the request line", "use rewrite for the path and the host")
	}
	s.checkHeaderValue(value)
}

// maxHeader is Envoy's limit for a configured header value, in bytes.
const maxHeader = 16 << 10

// checkHeaderValue checks the value of a request or response header. It also checks paths and hosts, which Envoy
// handles as headers.
func (s validator) checkHeaderValue(value string) {
	if strings.ContainsAny(value, "\r\n\x00") {
		s.refuse(value, "a header's value must have no line breaks", "remove them")
	}
	// In Envoy's configuration a literal percent sign is written twice.
	if size := len(value) + strings.Count(value, "%"); size > maxHeader {
		s.refuse(value, fmt.Sprintf("the header's value has %d bytes (each percent sign counts as two); at most %d are allowed", size, maxHeader), "shorten it")
	}
}

func (s validator) checkRewrite(r *networking.HTTPRewrite) {
	s.field("uri").checkHeaderValue(r.GetUri())
	s.field("authority").checkHeaderValue(r.GetAuthority())
	s.field("uriRegexRewrite").field("rewrite").checkHeaderValue(r.GetUriRegexRewrite().GetRewrite())
	switch regex := r.GetUriRegexRewrite(); {
	case r.GetUri() == "" && r.GetAuthority() == "" && regex == nil:
		s.refuse("", "the target of the rewrite is missing", "set uri, authority or uriRegexRewrite")
	case regex != nil && r.GetUri() != "":
		s.refuse("", "uri and uriRegexRewrite exclude each other", "remove one of the two")
	case regex != nil && regex.GetMatch() == "":
		s.field("uriRegexRewrite").field("match").refuse("", "the regular expression is missing", "set the expression that matches the text to replace")
	case regex != nil:
		s.field("uriRegexRewrite").field("match").checkRegex(regex.GetMatch())
	}
}

func (s validator) checkRedirect(r *networking.HTTPRedirect) {
	switch code := r.GetRedirectCode(); code {
	case 0, 301, 302, 303, 307, 308:
	default:
		s.field("redirectCode").refuse(code, "not a status code for redirects", "one of: 301, 302, 303, 307, 308")
	}
	if r.GetUri() == "" && r.GetAuthority() == "" && r.GetScheme() == "" && r.GetRedirectPort() == nil && r.GetPrefixRewrite() == "" {
		s.refuse("", "the target of the redirect is missing", "set uri, authority, scheme or port")
	}
	s.field("uri").checkHeaderValue(r.GetUri())
	s.field("authority").checkHeaderValue(r.GetAuthority())
	s.field("prefixRewrite").checkHeaderValue(r.GetPrefixRewrite())
	if port, ok := r.GetRedirectPort().(*networking.HTTPRedirect_Port); ok {
		s.field("port").checkPort(port.Port)
	}
	if scheme := r.GetScheme(); scheme != "" && scheme != "http" && scheme != "https" {
		s.field("scheme").refuse(scheme, "not a scheme", "one of: http, https")
	}
}

// MaxDirectResponse limits the body of a direct response, in bytes.
const MaxDirectResponse = 1 << 20

func (s validator) checkDirectResponse(r *networking.HTTPDirectResponse) {
	s.field("status").checkRange(int64(r.GetStatus()), 200, 599, "set a status code, as in 503")
	if size := max(len(r.GetBody().GetString_()), len(r.GetBody().GetBytes())); size > MaxDirectResponse {
		s.field("body").refuse(size, "the body is larger than 1 MiB", "serve it from a workload")
	}
}
