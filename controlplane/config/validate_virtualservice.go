package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func validateVirtualService(s validator, vs *networking.VirtualService) {
	if len(vs.GetHosts()) == 0 {
		s.checkDelegate(vs)
	}
	for i, host := range vs.GetHosts() {
		s.item("hosts", i).checkWildcardHost(host)
		if host == "*" && len(vs.GetGateways()) == 0 {
			s.item("hosts", i).refuse(host, "host \"*\" is possible only for gateways", "list the hosts, or set gateways")
		}
	}
	for i, gateway := range vs.GetGateways() {
		s.item("gateways", i).checkGatewayName(gateway)
	}
	if len(vs.GetHttp())+len(vs.GetTcp())+len(vs.GetTls()) == 0 {
		s.refuse("", "a VirtualService needs routes", "set http, tls or tcp")
	}
	for i, r := range vs.GetHttp() {
		s.item("http", i).checkHTTPRoute(r)
	}
	for i, r := range vs.GetTls() {
		s.item("tls", i).checkTLSRoute(r)
	}
	for i, r := range vs.GetTcp() {
		s.item("tcp", i).checkTCPRoute(r)
	}
	s.field("exportTo").checkExportTo(vs.GetExportTo())
	s.checkClaimsAtGateways(vs)
}

// checkClaimsAtGateways warns of conditions on token claims in a VirtualService for sidecars only. They never match,
// because sidecars do not verify tokens before they select a route.
func (s validator) checkClaimsAtGateways(vs *networking.VirtualService) {
	if len(vs.GetHosts()) == 0 || slices.ContainsFunc(vs.GetGateways(), func(name string) bool { return name != "mesh" }) {
		return
	}
	for i, r := range vs.GetHttp() {
		for j, m := range r.GetMatch() {
			for name := range m.GetHeaders() {
				if _, claim := RoutingClaim(name); claim {
					s.item("http", i).item("match", j).field("headers").key(name).warn(name, "never matches, because sidecars do not verify tokens before they select a route", "bind the VirtualService to a gateway")
				}
			}
		}
	}
}

// checkDelegate checks a VirtualService without hosts, which other VirtualServices can refer to as a delegate. It
// refuses fields that a delegate cannot have.
func (s validator) checkDelegate(vs *networking.VirtualService) {
	const only = "a VirtualService without hosts is a delegate"
	if len(vs.GetHttp()) == 0 {
		s.field("hosts").refuse("", "a VirtualService needs hosts", "list the host names to which clients send requests")
	}
	if len(vs.GetGateways()) > 0 {
		s.field("gateways").refuse("", only+", so the VirtualService that refers to it determines the gateways", "remove them, or list hosts")
	}
	if len(vs.GetTcp())+len(vs.GetTls()) > 0 {
		s.refuse("", only+", and only HTTP routes can be delegated", "remove tcp and tls, or list hosts")
	}
	for i, r := range vs.GetHttp() {
		if r.GetDelegate() != nil {
			s.item("http", i).field("delegate").refuse(r.GetDelegate().GetName(), "a delegate cannot delegate again", "set the routes directly")
		}
	}
}

func (s validator) checkGatewayName(name string) {
	namespace, rest, ok := strings.Cut(name, "/")
	if ok && (!dnsLabel.MatchString(namespace) || !dnsSubdomain.MatchString(rest)) || !ok && !dnsSubdomain.MatchString(name) {
		s.refuse(name, "not a gateway's name", "write name or namespace/name, or mesh for all sidecars")
	}
}

func (s validator) checkHTTPRoute(r *networking.HTTPRoute) {
	s.checkHTTPAction(r)
	for i, m := range r.GetMatch() {
		s.item("match", i).checkHTTPMatch(m)
	}
	s.checkHTTPDestinations(r.GetRoute())
	s.field("timeout").checkZeroOrMore(r.GetTimeout())
	s.field("retries").checkRetries(r.GetRetries())
	s.field("fault").checkFault(r.GetFault())
	s.checkMirrors(r)
	s.field("headers").checkHeaders(r.GetHeaders())
	if r.GetRewrite() != nil {
		s.field("rewrite").checkRewrite(r.GetRewrite())
	}
	if r.GetRedirect() != nil {
		s.field("redirect").checkRedirect(r.GetRedirect())
	}
	if r.GetDirectResponse() != nil {
		s.field("directResponse").checkDirectResponse(r.GetDirectResponse())
	}
	s.field("corsPolicy").checkCORS(r.GetCorsPolicy())
}

// checkHTTPAction checks that r has exactly one action.
func (s validator) checkHTTPAction(r *networking.HTTPRoute) {
	var actions []string
	for name, has := range map[string]bool{
		"route": len(r.GetRoute()) > 0, "redirect": r.GetRedirect() != nil,
		"directResponse": r.GetDirectResponse() != nil, "delegate": r.GetDelegate() != nil,
	} {
		if has {
			actions = append(actions, name)
		}
	}
	switch {
	case len(actions) == 0:
		s.refuse("", "the route has no action", "set route, redirect or directResponse")
	case len(actions) > 1:
		s.refuse("", "a route can have only one of these actions: "+joinNames(actions), "remove all of them except one")
	case r.GetRewrite() != nil && (r.GetRedirect() != nil || r.GetDirectResponse() != nil):
		s.field("rewrite").refuse("", "a rewrite has an effect only with a route", "remove the rewrite; a redirect has its own fields uri and authority")
	}
}

func (s validator) checkHTTPMatch(m *networking.HTTPMatchRequest) {
	s.field("uri").checkStringMatch(m.GetUri())
	s.field("scheme").checkStringMatch(m.GetScheme())
	s.field("method").checkStringMatch(m.GetMethod())
	s.field("authority").checkStringMatch(m.GetAuthority())
	s.field("headers").checkHeaderMatches(m.GetHeaders())
	s.field("withoutHeaders").checkHeaderMatches(m.GetWithoutHeaders())
	for name, match := range m.GetQueryParams() {
		at := s.field("queryParams").key(name)
		if len(name) < 1 || len(name) > 1024 {
			at.refuse(name, fmt.Sprintf("the parameter's name has %d bytes; it needs 1 to 1024", len(name)), "set the name of the parameter")
		}
		at.checkStringMatch(match)
	}
	if m.GetPort() != 0 {
		s.field("port").checkPort(m.GetPort())
	}
	s.field("sourceLabels").checkLabels(m.GetSourceLabels())
	for i, gateway := range m.GetGateways() {
		s.item("gateways", i).checkGatewayName(gateway)
	}
	if m.GetIgnoreUriCase() && m.GetUri().GetRegex() != "" {
		s.field("ignoreUriCase").warn("true", "has no effect on a regular expression", "begin the expression with (?i)")
	}
}

func (s validator) checkHeaderMatches(matches map[string]*networking.StringMatch) {
	for name, match := range matches {
		at := s.key(name)
		path, claim := RoutingClaim(name)
		switch {
		case !claim:
			at.checkHeaderName(name)
		case path == nil:
			at.refuse(name, "the name of the claim is missing", "write @request.auth.claims.groups, or @request.auth.claims[realm_access][roles] for a nested claim")
		case len(name) > maxHeader:
			at.refuse(name, fmt.Sprintf("the name of the claim has %d bytes; at most %d are allowed", len(name), maxHeader), "shorten it")
		}
		switch pseudo := strings.ToLower(name); {
		case pseudo == ":path" || pseudo == ":method" || pseudo == ":authority" || pseudo == ":scheme":
			at.warn(name, "a route cannot match this as a header", "use uri, method, authority or scheme")
		case strings.HasPrefix(name, ":"):
			at.warnNoEffect(name, "no request has a header of this name, which only fields of the request line have", "remove the colon")
		}
		at.checkStringMatch(match)
	}
}

func (s validator) checkStringMatch(m *networking.StringMatch) {
	if m.GetMatchType() == nil {
		return
	}
	switch t := m.GetMatchType().(type) {
	case *networking.StringMatch_Regex:
		if t.Regex == "" {
			s.field("regex").refuse("", "the expression is empty", "use exact or prefix, or leave the match out")
		}
		s.field("regex").checkRegex(t.Regex)
	case *networking.StringMatch_Prefix:
		if t.Prefix == "" {
			s.field("prefix").refuse("", "the prefix is empty", "omit the match to match everything")
		}
	}
}

// claimPrefix is the prefix of the names of header matches that match a claim of the request's token.
const claimPrefix = "@request.auth.claims"

// RoutingClaim parses the name of a header match. claim is true if name refers to a claim of the request's token. path
// is then the path of the claim, or nil if name is invalid. name separates nested claims by dots, or has each claim in
// brackets.
func RoutingClaim(name string) (path []string, claim bool) {
	if len(name) < len(claimPrefix) || !strings.EqualFold(name[:len(claimPrefix)], claimPrefix) {
		return nil, false
	}
	switch rest := name[len(claimPrefix):]; {
	case strings.HasPrefix(rest, "."):
		path = strings.Split(rest[1:], ".")
	case strings.HasPrefix(rest, "[") && strings.HasSuffix(rest, "]"):
		path = strings.Split(rest[1:len(rest)-1], "][")
	}
	if slices.Contains(path, "") {
		return nil, true
	}
	return path, true
}

var headerToken = regexp.MustCompile("^:?[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func (s validator) checkHeaderName(name string) {
	switch {
	case !headerToken.MatchString(name):
		s.refuse(name, "not the name of a header", "use letters, digits and '-'")
	case len(name) > maxHeader:
		s.refuse(name, fmt.Sprintf("the name of the header has %d bytes; at most %d are allowed", len(name), maxHeader), "shorten it")
	}
}

func (s validator) checkHTTPDestinations(routes []*networking.HTTPRouteDestination) {
	var weights []int32
	for i, r := range routes {
		at := s.item("route", i)
		at.field("destination").checkDestination(r.GetDestination())
		at.field("headers").checkHeaders(r.GetHeaders())
		weights = append(weights, r.GetWeight())
	}
	s.checkWeights(weights)
}

// checkWeights checks the weights of a route's destinations.
func (s validator) checkWeights(weights []int32) {
	total := int64(0)
	for i, weight := range weights {
		if weight < 0 {
			s.item("route", i).field("weight").refuse(weight, "must not be negative", "set 0 or more")
		}
		total += int64(weight)
	}
	switch {
	case len(weights) > 1 && total == 0:
		s.field("route").refuse("", "no destination has a weight", "set weights, as in 90 and 10")
	case total > 1<<31:
		s.field("route").refuse(total, "the sum of the weights is too large", "use weights with the sum 100")
	case len(weights) == 1 && s.d.positions[s.item("route", 0).field("weight").path].Line != 0 && total == 0:
		s.item("route", 0).field("weight").warn(0, "the weight has no effect, because the only destination receives all requests", "remove it")
	}
}

func (s validator) checkDestination(d *networking.Destination) {
	if d == nil {
		s.refuse("", "the destination is missing", "set the host of the destination")
		return
	}
	s.field("host").checkServiceHost(d.GetHost())
	if d.GetPort() != nil {
		s.field("port").field("number").checkPort(d.GetPort().GetNumber())
	}
	if d.GetSubset() != "" && !subsetName.MatchString(d.GetSubset()) {
		s.field("subset").refuse(d.GetSubset(), "not the name of a subset", "use letters, digits, '-', '_' and '.'")
	}
}

func (s validator) checkTLSRoute(r *networking.TLSRoute) {
	if len(r.GetMatch()) == 0 {
		s.field("match").refuse("", "a TLS route needs a match with sniHosts", "list the server names to which the route applies")
	}
	for i, m := range r.GetMatch() {
		at := s.item("match", i)
		if len(m.GetSniHosts()) == 0 {
			at.field("sniHosts").refuse("", "the list of server names is empty", "list the server names to which the route applies")
		}
		for j, host := range m.GetSniHosts() {
			at.item("sniHosts", j).checkWildcardHost(host)
			at.item("sniHosts", j).checkServerName(host)
		}
		if m.GetPort() != 0 {
			at.field("port").checkPort(m.GetPort())
		}
		at.field("destinationSubnets").checkCIDRs(m.GetDestinationSubnets())
		at.field("sourceLabels").checkLabels(m.GetSourceLabels())
	}
	s.checkLayer4(r.GetRoute())
}

func (s validator) checkTCPRoute(r *networking.TCPRoute) {
	for i, m := range r.GetMatch() {
		at := s.item("match", i)
		if m.GetPort() != 0 {
			at.field("port").checkPort(m.GetPort())
		}
		at.field("destinationSubnets").checkCIDRs(m.GetDestinationSubnets())
		at.field("sourceLabels").checkLabels(m.GetSourceLabels())
	}
	s.checkLayer4(r.GetRoute())
}

func (s validator) checkLayer4(routes []*networking.RouteDestination) {
	if len(routes) == 0 {
		s.field("route").refuse("", "the route has no destination", "set a destination")
	}
	var weights []int32
	for i, r := range routes {
		s.item("route", i).field("destination").checkDestination(r.GetDestination())
		weights = append(weights, r.GetWeight())
	}
	s.checkWeights(weights)
}

// checkServiceHost checks the host of a service. The host may be a wildcard for all hosts of a domain (*.example.com).
func (s validator) checkServiceHost(name string) {
	if strings.HasPrefix(name, "*.") {
		s.checkWildcardHost(name)
		return
	}
	s.checkHost(name)
}
