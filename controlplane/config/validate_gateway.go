package config

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// gatewayProtocols are those of a Gateway's port.
var gatewayProtocols = []string{"HTTP", "HTTPS", "GRPC", "GRPC-Web", "HTTP2", "MONGO", "TCP", "TLS", "MYSQL", "REDIS"}

func validateGateway(s scope, gw *networking.Gateway) {
	if len(gw.GetServers()) == 0 {
		s.field("servers").refuse("", "a Gateway needs servers", "give it a port and the hosts it takes")
	}
	if len(gw.GetSelector()) == 0 {
		s.field("selector").warn("", "without a selector the Gateway is for every gateway workload", "select the workload by its labels, as in istio: ingressgateway")
	}
	s.field("selector").labels(gw.GetSelector())
	ports, names := map[string]int{}, map[string]int{}
	for i, server := range gw.GetServers() {
		at := s.item("servers", i)
		at.server(server)
		at.field("port").field("name").unique(ports, server.GetPort().GetName(), i, "servers %d and %d have ports of the same name")
		at.field("name").unique(names, server.GetName(), i, "servers %d and %d have the same name")
	}
}

// unique checks that no server before the i-th has its name: servers are told apart by them.
func (s scope) unique(taken map[string]int, name string, i int, message string) {
	if name == "" {
		return
	}
	if first, ok := taken[name]; ok {
		s.refuse(name, fmt.Sprintf(message, first, i), "rename one, as in "+name+"-2")
		return
	}
	taken[name] = i
}

func (s scope) server(server *networking.Server) {
	port := server.GetPort()
	if port == nil {
		s.field("port").refuse("", "a server needs a port", "give it number, name and protocol")
		return
	}
	s.field("port").field("number").port(port.GetNumber())
	//lint:ignore SA1019 the field is deprecated, and documents have it
	if target := port.GetTargetPort(); target != 0 {
		s.field("port").field("targetPort").port(target)
	}
	if port.GetName() == "" {
		s.field("port").field("name").refuse("", "the port has no name", "give it one that no other server of the Gateway has")
	}
	s.field("port").protocol(port.GetProtocol(), gatewayProtocols)
	if len(server.GetHosts()) == 0 {
		s.field("hosts").refuse("", "a server needs hosts", "list them, or \"*\" for all")
	}
	for i, host := range server.GetHosts() {
		s.item("hosts", i).gatewayHost(host)
	}
	if bind := server.GetBind(); bind != "" && !isIP(bind) {
		s.field("bind").refuse(bind, "not an address that a gateway listens on here", "give an IP address")
	}
	s.field("defaultEndpoint").endpoint(server.GetDefaultEndpoint())
	s.serverTLSMatchesPort(server)
	s.field("tls").serverTLS(server.GetTls())
}

// protocol checks the protocol of a port; s is the port.
func (s scope) protocol(protocol string, allowed []string) {
	if protocol == "" {
		s.field("protocol").refuse("", "the port does not say what it speaks", "one of: "+list(allowed))
		return
	}
	for _, known := range allowed {
		if strings.EqualFold(known, protocol) {
			return
		}
	}
	s.field("protocol").refuse(protocol, "unknown protocol", didYouMean(protocol, allowed))
}

func (s scope) gatewayHost(host string) {
	namespace, name, ok := strings.Cut(host, "/")
	if !ok {
		s.wildcardHost(host)
		return
	}
	if namespace != "*" && namespace != "." && !dnsLabel.MatchString(namespace) {
		s.refuse(host, "not a namespace before the slash", "use a namespace's name, \".\" for this one, or \"*\" for all")
	}
	s.wildcardHost(name)
}

func (s scope) serverTLSMatchesPort(server *networking.Server) {
	protocol := strings.ToUpper(server.GetPort().GetProtocol())
	terminates := protocol == "HTTPS" || protocol == "TLS"
	tls := server.GetTls()
	switch {
	case terminates && tls == nil:
		s.field("tls").refuse("", "a server of protocol "+protocol+" needs tls", "give it a mode, and a certificate: serverCertificate and privateKey")
	case !terminates && tls != nil && !tls.GetHttpsRedirect() && hasCertificate(tls):
		s.field("tls").refuse("", "tls on a server of protocol "+protocol, "set the port's protocol to HTTPS or TLS")
	case tls.GetHttpsRedirect() && protocol != "HTTP":
		s.field("tls").field("httpsRedirect").refuse(true, "only plain HTTP can be redirected to HTTPS", "put it on the server of protocol HTTP")
	}
}

func hasCertificate(t *networking.ServerTLSSettings) bool {
	return t.GetServerCertificate() != "" || t.GetCredentialName() != "" || len(t.GetCredentialNames()) > 0 || len(t.GetTlsCertificates()) > 0
}

func (s scope) serverTLS(t *networking.ServerTLSSettings) {
	if t == nil || t.GetHttpsRedirect() {
		return
	}
	switch t.GetMode() {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		s.serverFiles(t)
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		if hasCertificate(t) {
			s.refuse("", "with mode ISTIO_MUTUAL the mesh's own certificates are used", "remove the certificate, or use mode MUTUAL")
		}
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		if hasCertificate(t) {
			s.warn("", "a certificate has no effect with mode "+t.GetMode().String(), "remove it, or use mode SIMPLE")
		}
	}
	s.serverRevocations(t)
	s.field("cipherSuites").ciphers(t.GetCipherSuites())
	if low, high := t.GetMinProtocolVersion(), t.GetMaxProtocolVersion(); high != 0 && low > high {
		s.field("minProtocolVersion").refuse(low, "above maxProtocolVersion", "swap them")
	}
}

func (s scope) serverFiles(t *networking.ServerTLSSettings) {
	mode := t.GetMode().String()
	if t.GetCredentialName() != "" || len(t.GetCredentialNames()) > 0 {
		if t.GetServerCertificate() != "" || t.GetPrivateKey() != "" || len(t.GetTlsCertificates()) > 0 {
			s.field("credentialName").refuse(t.GetCredentialName(), "excludes the files of a certificate", "keep either")
		}
		s.credentials(t)
		return
	}
	if len(t.GetTlsCertificates()) == 0 {
		if t.GetServerCertificate() == "" {
			s.field("serverCertificate").refuse("", "mode "+mode+" needs a certificate", "name its file, and that of its privateKey")
		}
		if t.GetPrivateKey() == "" {
			s.field("privateKey").refuse("", "mode "+mode+" needs a private key", "name its file")
		}
	}
	for i, c := range t.GetTlsCertificates() {
		if c.GetServerCertificate() == "" || c.GetPrivateKey() == "" {
			s.item("tlsCertificates", i).refuse("", "a certificate needs two files", "set serverCertificate and privateKey")
		}
	}
	s.clientAuthorities(t)
}

// serverRevocations checks that lists of what is revoked are looked at.
func (s scope) serverRevocations(t *networking.ServerTLSSettings) {
	at, crl := s.field("caCrl"), t.GetCaCrl()
	mutual := t.GetMode() == networking.ServerTLSSettings_MUTUAL || t.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL
	switch {
	case crl == "":
	case !mutual:
		at.refuse(crl, "only callers with certificates of their own (MUTUAL, OPTIONAL_MUTUAL) are held against it: one that was revoked would be let in", "set the mode, or remove it")
	case t.GetCaCertificates() == "":
		at.refuse(crl, "not taken beside Secrets: a caller whose certificate was revoked would be let in", "put the list into the Secret, as ca.crl, beside ca.crt")
	default:
		at.filePath(crl)
	}
}

// filePath checks the path of a file that an agent is to read.
func (s scope) filePath(path string) {
	if strings.ContainsAny(path, "\r\n\x00") {
		s.refuse(path, "not the path of a file", "write it on one line")
	}
}

// maxCredentials is how many certificates a server shows, of which the client's abilities choose: one of each sort of key.
const maxCredentials = 2

func (s scope) credentials(t *networking.ServerTLSSettings) {
	if t.GetCredentialName() != "" && len(t.GetCredentialNames()) > 0 {
		s.field("credentialNames").refuse("", "credentialName and credentialNames exclude one another", "keep credentialNames")
	}
	if len(t.GetCredentialNames()) > maxCredentials {
		s.field("credentialNames").refuse(len(t.GetCredentialNames()), fmt.Sprintf("more than %d", maxCredentials), "name one with an RSA key and one with an ECDSA key")
	}
	for i, name := range t.GetCredentialNames() {
		s.item("credentialNames", i).credential(name)
	}
	if name := t.GetCredentialName(); name != "" {
		s.field("credentialName").credential(name)
	}
	if name := t.GetCaCertCredentialName(); name != "" {
		s.field("caCertCredentialName").credential(name)
	}
	if t.GetCaCertificates() != "" {
		s.clientAuthorities(t)
	}
}

// credential checks the name of a Secret of the gateway's own namespace.
func (s scope) credential(name string) {
	if !dnsSubdomain.MatchString(name) || len(name) > 253 {
		s.refuse(name, "not the name of a Secret", "name a Secret of the namespace that the gateway's workload is in")
	}
}

// clientAuthorities checks who may sign the certificates of clients: it has to be said, and is never everyone whom the
// system trusts.
func (s scope) clientAuthorities(t *networking.ServerTLSSettings) {
	at := s.field("caCertificates")
	switch {
	case t.GetMode() == networking.ServerTLSSettings_SIMPLE:
	case t.GetCaCertificates() != "" && t.GetCaCertCredentialName() != "":
		at.refuse(t.GetCaCertificates(), "caCertificates and caCertCredentialName exclude one another", "keep one of the two")
	case t.GetCaCertCredentialName() != "":
		s.field("caCertCredentialName").credential(t.GetCaCertCredentialName())
	case t.GetCaCertificates() == "":
		at.refuse("", "mode "+t.GetMode().String()+" needs the certificates of those who sign the clients'", "name their file")
	case t.GetCaCertificates() == "system":
		at.refuse("system", "whoever has a certificate of a public authority would be let in", "name the file of your own authority's certificate")
	}
}
