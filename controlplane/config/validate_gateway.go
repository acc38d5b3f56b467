package config

import (
	"fmt"
	"strings"
	"unicode"

	networking "istio.io/api/networking/v1alpha3"
)

// gatewayProtocols lists the protocols of a Gateway's port.
var gatewayProtocols = []string{"HTTP", "HTTPS", "GRPC", "GRPC-Web", "HTTP2", "MONGO", "TCP", "TLS", "MYSQL", "REDIS"}

func validateGateway(s validator, gw *networking.Gateway) {
	if len(gw.GetServers()) == 0 {
		s.field("servers").refuse("", "a Gateway needs servers", "add a server with a port and hosts")
	}
	if len(gw.GetSelector()) == 0 {
		s.field("selector").warn("", "a Gateway without a selector applies to all gateways of the mesh", "select the gateway's workload by its labels, as in istio: ingressgateway")
	}
	s.field("selector").checkLabels(gw.GetSelector())
	ports, names := map[string]int{}, map[string]int{}
	for i, server := range gw.GetServers() {
		at := s.item("servers", i)
		at.checkServer(server)
		at.field("port").field("name").checkUnique(ports, server.GetPort().GetName(), i, "servers %d and %d have ports with the same name")
		at.field("name").checkUnique(names, server.GetName(), i, "servers %d and %d have the same name")
	}
}

// checkUnique checks that no server before the i-th uses name, and adds name to taken. message is a format for the
// indexes of both servers.
func (s validator) checkUnique(taken map[string]int, name string, i int, message string) {
	if name == "" {
		return
	}
	if first, ok := taken[name]; ok {
		s.refuse(name, fmt.Sprintf(message, first, i), "rename one, as in "+name+"-2")
		return
	}
	taken[name] = i
}

func (s validator) checkServer(server *networking.Server) {
	port := server.GetPort()
	if port == nil {
		s.field("port").refuse("", "a server needs a port", "set number, name and protocol")
		return
	}
	s.field("port").field("number").checkPort(port.GetNumber())
	//lint:ignore SA1019 the field is deprecated, but documents still use it
	if target := port.GetTargetPort(); target != 0 {
		s.field("port").field("targetPort").checkPort(target)
	}
	if port.GetName() == "" {
		s.field("port").field("name").refuse("", "the port has no name", "set a name that is unique in the Gateway")
	}
	s.field("port").checkProtocol(port.GetProtocol(), gatewayProtocols)
	if len(server.GetHosts()) == 0 {
		s.field("hosts").refuse("", "a server needs hosts", "list them, or \"*\" for all")
	}
	for i, host := range server.GetHosts() {
		s.item("hosts", i).checkGatewayHost(host)
		if isTLSProtocol(port.GetProtocol()) {
			_, name, _ := cutNamespace(host)
			s.item("hosts", i).checkServerName(name)
		}
	}
	if bind := server.GetBind(); bind != "" && !isIP(bind) {
		s.field("bind").refuse(bind, "gateways in this mesh cannot listen on this address", "set an IP address")
	}
	s.field("defaultEndpoint").checkEndpoint(server.GetDefaultEndpoint())
	s.checkServerTLSMatchesPort(server)
	if !RedirectsToHTTPS(server) {
		s.field("tls").checkServerTLS(server.GetTls())
	}
}

// checkProtocol checks the protocol of the port s.
func (s validator) checkProtocol(protocol string, allowed []string) {
	if protocol == "" {
		s.field("protocol").refuse("", "the port has no protocol", "one of: "+joinNames(allowed))
		return
	}
	for _, known := range allowed {
		if strings.EqualFold(known, protocol) {
			return
		}
	}
	s.field("protocol").refuse(protocol, "unknown protocol", didYouMean(protocol, allowed))
}

func (s validator) checkGatewayHost(host string) {
	namespace, name, ok := cutNamespace(host)
	if !ok {
		s.checkWildcardHost(host)
		return
	}
	if namespace != "*" && namespace != "." && !dnsLabel.MatchString(namespace) {
		s.refuse(host, "the part before the slash is not a namespace", "use the name of a namespace, \".\" for the document's namespace, or \"*\" for all")
	}
	s.checkWildcardHost(name)
}

// cutNamespace splits the host of a Gateway's server at the slash. ok is false if the host has no namespace.
func cutNamespace(host string) (namespace, name string, ok bool) {
	if namespace, name, ok = strings.Cut(host, "/"); !ok {
		return "", host, false
	}
	return namespace, name, true
}

func isTLSProtocol(protocol string) bool {
	return strings.EqualFold(protocol, "HTTPS") || strings.EqualFold(protocol, "TLS")
}

// RedirectsToHTTPS reports whether the server answers plaintext requests with a redirect to HTTPS. The setting
// httpsRedirect has an effect only if the server's protocol is HTTP, HTTP2, GRPC or GRPC-Web.
func RedirectsToHTTPS(server *networking.Server) bool {
	switch strings.ToUpper(server.GetPort().GetProtocol()) {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB":
		return server.GetTls().GetHttpsRedirect()
	}
	return false
}

func (s validator) checkServerTLSMatchesPort(server *networking.Server) {
	protocol := strings.ToUpper(server.GetPort().GetProtocol())
	terminates := isTLSProtocol(protocol)
	tls := server.GetTls()
	switch {
	case terminates && tls == nil:
		s.field("tls").refuse("", "a server of protocol "+protocol+" needs tls", "set a mode, and a certificate: serverCertificate and privateKey")
	case !terminates && !RedirectsToHTTPS(server) && hasCertificate(tls):
		s.field("tls").refuse("", "a server of protocol "+protocol+" cannot use the certificate in tls", "set the port's protocol to HTTPS or TLS, or remove the certificate")
	}
	if tls.GetHttpsRedirect() && !RedirectsToHTTPS(server) {
		s.field("tls").field("httpsRedirect").warn(true, "has no effect, because only plain HTTP can be redirected to HTTPS", "move the setting to the server with protocol HTTP")
	}
}

func hasCertificate(t *networking.ServerTLSSettings) bool {
	return t.GetServerCertificate() != "" || t.GetCredentialName() != "" || len(t.GetCredentialNames()) > 0 || len(t.GetTlsCertificates()) > 0
}

func (s validator) checkServerTLS(t *networking.ServerTLSSettings) {
	if t == nil {
		return
	}
	switch t.GetMode() {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		s.checkServerFiles(t)
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		if hasCertificate(t) {
			s.refuse("", "with mode ISTIO_MUTUAL, the gateway uses the certificates of the mesh and ignores this one", "remove the certificate, or use mode MUTUAL")
		}
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		if hasCertificate(t) {
			s.warn("", "a certificate has no effect with mode "+t.GetMode().String(), "remove the certificate, or use mode SIMPLE")
		}
	}
	s.checkServerRevocations(t)
	s.field("cipherSuites").checkCiphers(t.GetCipherSuites())
	if low, high := t.GetMinProtocolVersion(), t.GetMaxProtocolVersion(); high != 0 && low > high {
		s.field("minProtocolVersion").refuse(low, "minProtocolVersion is higher than maxProtocolVersion", "swap the two versions")
	}
}

func (s validator) checkServerFiles(t *networking.ServerTLSSettings) {
	mode := t.GetMode().String()
	if t.GetCredentialName() != "" || len(t.GetCredentialNames()) > 0 {
		if t.GetServerCertificate() != "" || t.GetPrivateKey() != "" || len(t.GetTlsCertificates()) > 0 {
			s.field("credentialName").refuse(t.GetCredentialName(), "credentialName and certificate files exclude each other", "remove one of the two")
		}
		s.checkCredentials(t)
		return
	}
	if len(t.GetTlsCertificates()) == 0 {
		if t.GetServerCertificate() == "" {
			s.field("serverCertificate").refuse("", "mode "+mode+" needs a certificate", "set the paths of its file and of the privateKey")
		}
		if t.GetPrivateKey() == "" {
			s.field("privateKey").refuse("", "mode "+mode+" needs a private key", "set the path of its file")
		}
	}
	for i, c := range t.GetTlsCertificates() {
		if c.GetServerCertificate() == "" || c.GetPrivateKey() == "" {
			s.item("tlsCertificates", i).refuse("", "a certificate needs two files", "set serverCertificate and privateKey")
		}
	}
	s.checkClientAuthorities(t)
}

// checkServerRevocations refuses a certificate revocation list (caCrl) that would have no effect.
func (s validator) checkServerRevocations(t *networking.ServerTLSSettings) {
	at, crl := s.field("caCrl"), t.GetCaCrl()
	mutual := t.GetMode() == networking.ServerTLSSettings_MUTUAL || t.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL
	switch {
	case crl == "":
	case !mutual:
		at.refuse(crl, "the list has an effect only in modes that verify client certificates (MUTUAL, OPTIONAL_MUTUAL)", "set one of these modes, or remove the list")
	case t.GetCaCertificates() == "":
		at.refuse(crl, "has no effect together with Secrets, so the gateway would accept a client with a revoked certificate", "add the list to the Secret as ca.crl, together with ca.crt")
	default:
		at.checkFilePath(crl)
	}
}

// checkFilePath checks the path of a file that an agent reads.
func (s validator) checkFilePath(path string) {
	if strings.ContainsAny(path, "\r\n\x00") {
		s.refuse(path, "not the path of a file", "write it on one line")
	}
}

// maxCredentials limits the certificates of a server: one RSA and one ECDSA certificate. Envoy selects the one that the
// client supports.
const maxCredentials = 2

func (s validator) checkCredentials(t *networking.ServerTLSSettings) {
	if t.GetCredentialName() != "" && len(t.GetCredentialNames()) > 0 {
		s.field("credentialNames").refuse("", "credentialName and credentialNames exclude each other", "remove credentialName")
	}
	if len(t.GetCredentialNames()) > maxCredentials {
		s.field("credentialNames").refuse(len(t.GetCredentialNames()), fmt.Sprintf("a server has at most %d certificates", maxCredentials), "list one with an RSA key and one with an ECDSA key")
	}
	for i, name := range t.GetCredentialNames() {
		s.item("credentialNames", i).checkCredential(name)
	}
	if name := t.GetCredentialName(); name != "" {
		s.field("credentialName").checkCredential(name)
	}
	if name := t.GetCaCertCredentialName(); name != "" {
		s.field("caCertCredentialName").checkCredential(name)
	}
	if t.GetCaCertificates() != "" {
		s.checkClientAuthorities(t)
	}
}

// checkCredential checks that name is a valid name of a Secret, or of a certificate of an SDS server (sds://).
func (s validator) checkCredential(name string) {
	if resource, external := ExternalCredential(name); external {
		if resource == "" || len(resource) > 253 || strings.ContainsFunc(resource, unicode.IsControl) {
			s.refuse(name, "not the name of a certificate", "write sds:// and the name by which the SDS server knows the certificate")
		}
		return
	}
	name = SecretName(name)
	if !dnsSubdomain.MatchString(name) || len(name) > 253 {
		s.refuse(name, "not the name of a Secret", "set the name of a Secret in the namespace of the gateway's workload")
	}
}

// checkClientAuthorities checks that a server that verifies client certificates specifies their CA. The public CAs of
// the system are refused.
func (s validator) checkClientAuthorities(t *networking.ServerTLSSettings) {
	at := s.field("caCertificates")
	switch {
	case t.GetMode() == networking.ServerTLSSettings_SIMPLE:
	case t.GetCaCertificates() != "" && t.GetCaCertCredentialName() != "":
		at.refuse(t.GetCaCertificates(), "caCertificates and caCertCredentialName exclude each other", "remove one of the two")
	case t.GetCaCertCredentialName() != "":
		s.field("caCertCredentialName").checkCredential(t.GetCaCertCredentialName())
	case t.GetCaCertificates() == "":
		at.refuse("", "mode "+t.GetMode().String()+" requires the CA certificates for client certificates", "set the path of their file")
	case t.GetCaCertificates() == "system":
		at.refuse("system", "the gateway would accept any client with a certificate of a public CA", "set the path of your own CA's certificate")
	}
}
