package translate

import (
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// renumberPriorities sets the values of rank: it maps the priorities, in their order, to consecutive numbers from 0.
func renumberPriorities(rank map[uint32]uint32) {
	for i, p := range slices.Sorted(maps.Keys(rank)) {
		rank[p] = uint32(i)
	}
}

// grpcCertificates refers to the certificate provider that agents define in the gRPC bootstrap.
func grpcCertificates() *tlsv3.CertificateProviderPluginInstance {
	return &tlsv3.CertificateProviderPluginInstance{InstanceName: "default"}
}

// grpcTLS returns a TLS context with the workload's certificate. It verifies that the peer's certificate has one of the
// identities, if any, and is signed by a root of the mesh. gRPC reads the identities from a field that is deprecated in
// Envoy.
func grpcTLS(identities []string) *tlsv3.CommonTlsContext {
	validation := &tlsv3.CertificateValidationContext{CaCertificateProviderInstance: grpcCertificates()}
	var accepted []*matcherv3.StringMatcher
	for _, id := range identities {
		accepted = append(accepted, exact(id))
	}
	//lint:ignore SA1019 see above
	validation.MatchSubjectAltNames = accepted
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: grpcCertificates(),
		ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation},
	}
}

func grpcClientTLS(sni string, identities []string) *corev3.TransportSocket {
	return tlsSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: grpcTLS(identities), Sni: sni})
}

func grpcServerTLS() *corev3.TransportSocket {
	return serverTLS(&tlsv3.DownstreamTlsContext{CommonTlsContext: grpcTLS(nil), RequireClientCertificate: boolean(true)})
}

// grpcRBAC returns the filters that enforce the workload's AuthorizationPolicies. If a policy depends on attributes
// that gRPC cannot evaluate, they deny the requests.
func (v proxyView) grpcRBAC() []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	for _, rules := range v.rbacRules(false) {
		name, denies := allowFilterName, rules.GetAction() == rbacv3.RBAC_DENY
		if denies {
			name = denyFilterName
		}
		for _, id := range slices.Sorted(maps.Keys(rules.GetPolicies())) {
			if grpcSupportsPolicy(rules.GetPolicies()[id]) {
				continue
			}
			delete(rules.GetPolicies(), id)
			if denies {
				rules.GetPolicies()[id] = matchAllPolicy()
			}
		}
		out = append(out, httpFilter(name, &httprbacv3.RBAC{Rules: rules}))
	}
	return out
}

func matchAllPolicy() *rbacv3.Policy {
	return &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
		Principals:  []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}},
	}
}

func grpcSupportsPolicy(p *rbacv3.Policy) bool {
	return p.GetCondition() == nil && p.GetCheckedCondition() == nil &&
		grpcSupportsPermissions(p.GetPermissions()) && grpcSupportsPrincipals(p.GetPrincipals())
}

func grpcSupportsPermissions(all []*rbacv3.Permission) bool {
	for _, p := range all {
		ok := true
		switch rule := p.GetRule().(type) {
		case *rbacv3.Permission_Any, *rbacv3.Permission_UrlPath, *rbacv3.Permission_DestinationIp, *rbacv3.Permission_DestinationPort:
		case *rbacv3.Permission_Header:
			ok = grpcSupportsHeader(rule.Header.GetName())
		case *rbacv3.Permission_AndRules:
			ok = grpcSupportsPermissions(rule.AndRules.GetRules())
		case *rbacv3.Permission_OrRules:
			ok = grpcSupportsPermissions(rule.OrRules.GetRules())
		case *rbacv3.Permission_NotRule:
			ok = grpcSupportsPermissions([]*rbacv3.Permission{rule.NotRule})
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

func grpcSupportsPrincipals(all []*rbacv3.Principal) bool {
	for _, p := range all {
		ok := true
		switch id := p.GetIdentifier().(type) {
		case *rbacv3.Principal_Any, *rbacv3.Principal_Authenticated_, *rbacv3.Principal_DirectRemoteIp, *rbacv3.Principal_RemoteIp,
			*rbacv3.Principal_UrlPath:
		case *rbacv3.Principal_Header:
			ok = grpcSupportsHeader(id.Header.GetName())
		case *rbacv3.Principal_AndIds:
			ok = grpcSupportsPrincipals(id.AndIds.GetIds())
		case *rbacv3.Principal_OrIds:
			ok = grpcSupportsPrincipals(id.OrIds.GetIds())
		case *rbacv3.Principal_NotId:
			ok = grpcSupportsPrincipals([]*rbacv3.Principal{id.NotId})
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// grpcSupportsHeader reports whether gRPC servers pass a header to RBAC as the client sent it. For RBAC, gRPC servers
// treat other headers as missing, so a DENY rule on them would never match. The same is true for the SNI, which is
// always empty.
func grpcSupportsHeader(name string) bool {
	switch name {
	case ":authority", ":method":
		return true
	case "host", "te", "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "content-type", "content-length":
		return false
	}
	return !strings.HasPrefix(name, ":") && !strings.HasPrefix(name, "grpc-") && !strings.HasSuffix(name, "-bin")
}
