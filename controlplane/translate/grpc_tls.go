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

// closeGaps numbers what is there from 0, in order.
func closeGaps(rank map[uint32]uint32) {
	for i, p := range slices.Sorted(maps.Keys(rank)) {
		rank[p] = uint32(i)
	}
}

// grpcCertificates are those of the bootstrap, under the name that agents give them.
func grpcCertificates() *tlsv3.CertificateProviderPluginInstance {
	return &tlsv3.CertificateProviderPluginInstance{InstanceName: "default"}
}

// grpcTLS shows the workload's certificate, and wants one of the mesh, with one of the identities if any are given. gRPC
// reads these from a field that Envoy has another for by now.
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

// grpcRBAC enforce the workload's AuthorizationPolicies, as far as gRPC can look at what they ask. What it cannot look at
// is not let in by it.
func (v view) grpcRBAC() []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	for _, rules := range v.rbac(false) {
		name, denies := allowFilterName, rules.GetAction() == rbacv3.RBAC_DENY
		if denies {
			name = denyFilterName
		}
		for _, id := range slices.Sorted(maps.Keys(rules.GetPolicies())) {
			if grpcTakesPolicy(rules.GetPolicies()[id]) {
				continue
			}
			delete(rules.GetPolicies(), id)
			if denies {
				rules.GetPolicies()[id] = everybody()
			}
		}
		out = append(out, httpFilter(name, &httprbacv3.RBAC{Rules: rules}))
	}
	return out
}

func everybody() *rbacv3.Policy {
	return &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
		Principals:  []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}},
	}
}

func grpcTakesPolicy(p *rbacv3.Policy) bool {
	return p.GetCondition() == nil && p.GetCheckedCondition() == nil &&
		grpcTakesPermissions(p.GetPermissions()) && grpcTakesPrincipals(p.GetPrincipals())
}

func grpcTakesPermissions(all []*rbacv3.Permission) bool {
	for _, p := range all {
		ok := true
		switch rule := p.GetRule().(type) {
		case *rbacv3.Permission_Any, *rbacv3.Permission_UrlPath, *rbacv3.Permission_DestinationIp, *rbacv3.Permission_DestinationPort:
		case *rbacv3.Permission_Header:
			ok = grpcTakesHeader(rule.Header.GetName())
		case *rbacv3.Permission_AndRules:
			ok = grpcTakesPermissions(rule.AndRules.GetRules())
		case *rbacv3.Permission_OrRules:
			ok = grpcTakesPermissions(rule.OrRules.GetRules())
		case *rbacv3.Permission_NotRule:
			ok = grpcTakesPermissions([]*rbacv3.Permission{rule.NotRule})
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

func grpcTakesPrincipals(all []*rbacv3.Principal) bool {
	for _, p := range all {
		ok := true
		switch id := p.GetIdentifier().(type) {
		case *rbacv3.Principal_Any, *rbacv3.Principal_Authenticated_, *rbacv3.Principal_DirectRemoteIp, *rbacv3.Principal_RemoteIp,
			*rbacv3.Principal_UrlPath:
		case *rbacv3.Principal_Header:
			ok = grpcTakesHeader(id.Header.GetName())
		case *rbacv3.Principal_AndIds:
			ok = grpcTakesPrincipals(id.AndIds.GetIds())
		case *rbacv3.Principal_OrIds:
			ok = grpcTakesPrincipals(id.OrIds.GetIds())
		case *rbacv3.Principal_NotId:
			ok = grpcTakesPrincipals([]*rbacv3.Principal{id.NotId})
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// grpcTakesHeader says whether gRPC's servers see a header as it was sent. Those that they do not see are to them not
// there, which would be for a DENY never to hold. The name of a server in TLS is the same to them: always empty.
func grpcTakesHeader(name string) bool {
	switch name {
	case ":authority", ":method":
		return true
	case "host", "te", "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "content-type", "content-length":
		return false
	}
	return !strings.HasPrefix(name, ":") && !strings.HasPrefix(name, "grpc-") && !strings.HasSuffix(name, "-bin")
}
