package config

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"fmt"
	"path"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/pemtext"
)

// checkMeshValues returns an error for the first value that proxies would reject. Such a value would affect the
// clusters, routes or listeners of all proxies.
func checkMeshValues(mesh *meshconfig.MeshConfig) error {
	d := &document{}
	validator{d, ""}.checkMeshValues(mesh)
	for _, p := range d.problems {
		if p.Severity == Error {
			return fmt.Errorf("%s: %q: %s: %s", strings.TrimPrefix(p.Field, "."), p.Value, p.Message, p.Remedy)
		}
	}
	return nil
}

func (s validator) checkMeshValues(mesh *meshconfig.MeshConfig) {
	s.field("connectTimeout").checkMilliseconds(mesh.GetConnectTimeout())
	s.field("protocolDetectionTimeout").checkZeroOrMore(mesh.GetProtocolDetectionTimeout())
	s.field("tcpKeepalive").field("time").checkZeroOrMore(mesh.GetTcpKeepalive().GetTime())
	s.field("tcpKeepalive").field("interval").checkZeroOrMore(mesh.GetTcpKeepalive().GetInterval())
	s.field("defaultHttpRetryPolicy").checkRetries(mesh.GetDefaultHttpRetryPolicy())
	s.field("localityLbSetting").checkLocalities(mesh.GetLocalityLbSetting())
	s.field("defaultConfig").field("tracing").field("sampling").checkPercent(mesh.GetDefaultConfig().GetTracing().GetSampling())
	for i, root := range mesh.GetCaCertificates() {
		if _, ok := root.GetCertificateData().(*meshconfig.MeshConfig_CertificateData_Pem); ok {
			s.item("caCertificates", i).field("pem").checkRoots(root.GetPem())
		}
	}
	s.field("meshMTLS").checkMeshTLS(mesh.GetMeshMTLS())
	s.field("tlsDefaults").checkMeshTLS(mesh.GetTlsDefaults())
	s.field("accessLogFile").checkLogPath(mesh.GetAccessLogFile())
	for name, port := range map[string]int32{
		"proxyListenPort": mesh.GetProxyListenPort(), "proxyInboundListenPort": mesh.GetProxyInboundListenPort(), "proxyHttpPort": mesh.GetProxyHttpPort(),
	} {
		s.field(name).checkRange(int64(port), 0, 65535, "set a port, or 0 for the default port")
	}
	s.checkDistinctPorts(mesh)
	for i, p := range mesh.GetExtensionProviders() {
		s.item("extensionProviders", i).checkProviderValues(p)
	}
}

// checkDistinctPorts checks that proxyListenPort, proxyInboundListenPort and proxyHttpPort are different ports.
func (s validator) checkDistinctPorts(mesh *meshconfig.MeshConfig) {
	out, in := cmp.Or(mesh.GetProxyListenPort(), 15001), cmp.Or(mesh.GetProxyInboundListenPort(), 15006)
	if out == in {
		s.field("proxyInboundListenPort").refuse(in, "proxyInboundListenPort and proxyListenPort are the same port", "set proxyListenPort and proxyInboundListenPort to different ports")
	}
	if web := mesh.GetProxyHttpPort(); web != 0 && (web == out || web == in) {
		s.field("proxyHttpPort").refuse(web, "another listener uses this port", "set a different port")
	}
}

func (s validator) checkProviderValues(p *meshconfig.MeshConfig_ExtensionProvider) {
	switch p := p.GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		s.field("envoyFileAccessLog").field("path").checkLogPath(p.EnvoyFileAccessLog.GetPath())
	case *meshconfig.MeshConfig_ExtensionProvider_Opentelemetry:
		s.field("opentelemetry").checkCollector(p.Opentelemetry)
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp:
		s.field("envoyExtAuthzHttp").checkAuthorizerHeaders(p.EnvoyExtAuthzHttp)
	case *meshconfig.MeshConfig_ExtensionProvider_Zipkin:
		s.field("zipkin").field("path").checkHeaderValue(p.Zipkin.GetPath())
	}
}

func (s validator) checkCollector(p *meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) {
	if h := p.GetHttp(); h != nil {
		at := s.field("http")
		at.field("path").checkHeaderValue(h.GetPath())
		at.field("timeout").checkZeroOrMore(h.GetTimeout())
		for i, header := range h.GetHeaders() {
			at.item("headers", i).checkProviderHeader(header)
		}
	}
	if g := p.GetGrpc(); g != nil {
		at := s.field("grpc")
		at.field("timeout").checkZeroOrMore(g.GetTimeout())
		for i, header := range g.GetInitialMetadata() {
			at.item("initialMetadata", i).checkProviderHeader(header)
		}
	}
}

// checkAuthorizerHeaders warns of forwarded headers whose names no header can have. A name may contain a wildcard.
func (s validator) checkAuthorizerHeaders(p *meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider) {
	s.warnInvalidHeaders("includeRequestHeadersInCheck", p.GetIncludeRequestHeadersInCheck())
	s.warnInvalidHeaders("headersToUpstreamOnAllow", p.GetHeadersToUpstreamOnAllow())
	s.warnInvalidHeaders("headersToDownstreamOnDeny", p.GetHeadersToDownstreamOnDeny())
	s.warnInvalidHeaders("headersToDownstreamOnAllow", p.GetHeadersToDownstreamOnAllow())
}

func (s validator) checkProviderHeader(h *meshconfig.MeshConfig_ExtensionProvider_HttpHeader) {
	if name := h.GetName(); strings.HasPrefix(name, ":") || strings.EqualFold(name, "host") {
		s.field("name").refuse(name, "Envoy cannot change this header, because it is part of the request line", "remove it")
	}
	s.field("name").checkHeaderName(h.GetName())
	s.field("value").checkHeaderValue(h.GetValue())
}

// checkLogPath checks the path of a log file of proxies. It does not check whether the proxies can open the file.
func (s validator) checkLogPath(file string) {
	switch {
	case strings.ContainsAny(file, "\r\n\x00"):
		s.refuse(file, "not the path of a file", "write it on one line")
	case file == "":
	case strings.HasSuffix(file, "/"), path.Clean(file) == ".":
		s.refuse(file, "a folder, not a file", "use a value such as /dev/stdout")
	}
}

// checkRoots checks CA certificates. If one is invalid, agents reject all roots of the mesh, including those of the
// control plane's own CA.
func (s validator) checkRoots(text string) {
	const remedy = "set CA certificates in PEM"
	size := fmt.Sprintf("%d bytes", len(text)) // the text itself may contain a private key
	blocks, err := pemtext.Blocks([]byte(text))
	if err != nil {
		s.refuse(size, err.Error(), remedy)
		return
	}
	n := 0
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		n++
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			s.refuse(fmt.Sprintf("certificate %d", n), fmt.Sprintf("it cannot be read: %v", err), remedy)
			return
		}
		// X.509 before version 3 has no basic constraints, so a CA certificate cannot be recognized.
		old := !cert.BasicConstraintsValid && cert.Version < 3
		if !cert.IsCA && !old && !bytes.Equal(cert.RawIssuer, cert.RawSubject) {
			s.refuse(cert.Subject, "it is not the certificate of an authority, so no certificate can chain to it", "use the certificate of its issuer "+cert.Issuer.String())
			return
		}
	}
	if n == 0 {
		s.refuse(size, "it contains no certificate", remedy)
	}
}
