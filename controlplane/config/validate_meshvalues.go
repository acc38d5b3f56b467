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

// checkMeshValues finds the first value of a mesh configuration that proxies would refuse: what is made of such a one is in
// everybody's clusters, routes or listeners.
func checkMeshValues(mesh *meshconfig.MeshConfig) error {
	d := &document{}
	scope{d, ""}.meshValues(mesh)
	for _, p := range d.problems {
		if p.Severity == Error {
			return fmt.Errorf("%s: %q: %s: %s", strings.TrimPrefix(p.Field, "."), p.Value, p.Message, p.Remedy)
		}
	}
	return nil
}

func (s scope) meshValues(mesh *meshconfig.MeshConfig) {
	s.field("connectTimeout").millisecond(mesh.GetConnectTimeout())
	s.field("protocolDetectionTimeout").zeroOrMore(mesh.GetProtocolDetectionTimeout())
	s.field("tcpKeepalive").field("time").zeroOrMore(mesh.GetTcpKeepalive().GetTime())
	s.field("tcpKeepalive").field("interval").zeroOrMore(mesh.GetTcpKeepalive().GetInterval())
	s.field("defaultHttpRetryPolicy").retries(mesh.GetDefaultHttpRetryPolicy())
	s.field("localityLbSetting").localities(mesh.GetLocalityLbSetting())
	s.field("defaultConfig").field("tracing").field("sampling").percent(mesh.GetDefaultConfig().GetTracing().GetSampling())
	for i, root := range mesh.GetCaCertificates() {
		if _, ok := root.GetCertificateData().(*meshconfig.MeshConfig_CertificateData_Pem); ok {
			s.item("caCertificates", i).field("pem").roots(root.GetPem())
		}
	}
	s.field("meshMTLS").meshTLS(mesh.GetMeshMTLS())
	s.field("tlsDefaults").meshTLS(mesh.GetTlsDefaults())
	s.field("accessLogFile").logPath(mesh.GetAccessLogFile())
	for name, port := range map[string]int32{
		"proxyListenPort": mesh.GetProxyListenPort(), "proxyInboundListenPort": mesh.GetProxyInboundListenPort(), "proxyHttpPort": mesh.GetProxyHttpPort(),
	} {
		s.field(name).between(int64(port), 0, 65535, "give a port, or 0 for the usual one")
	}
	s.differentPorts(mesh)
	for i, p := range mesh.GetExtensionProviders() {
		s.item("extensionProviders", i).providerValues(p)
	}
}

// differentPorts: no two listeners can be at one.
func (s scope) differentPorts(mesh *meshconfig.MeshConfig) {
	out, in := cmp.Or(mesh.GetProxyListenPort(), 15001), cmp.Or(mesh.GetProxyInboundListenPort(), 15006)
	if out == in {
		s.field("proxyInboundListenPort").refuse(in, "the port of what goes out, too", "give proxyListenPort and proxyInboundListenPort different ports")
	}
	if web := mesh.GetProxyHttpPort(); web != 0 && (web == out || web == in) {
		s.field("proxyHttpPort").refuse(web, "the port of another listener, too", "give it a port of its own")
	}
}

func (s scope) providerValues(p *meshconfig.MeshConfig_ExtensionProvider) {
	switch p := p.GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		s.field("envoyFileAccessLog").field("path").logPath(p.EnvoyFileAccessLog.GetPath())
	case *meshconfig.MeshConfig_ExtensionProvider_Opentelemetry:
		s.field("opentelemetry").collector(p.Opentelemetry)
	case *meshconfig.MeshConfig_ExtensionProvider_Zipkin:
		s.field("zipkin").field("path").headerValue(p.Zipkin.GetPath())
	}
}

func (s scope) collector(p *meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) {
	if h := p.GetHttp(); h != nil {
		at := s.field("http")
		at.field("path").headerValue(h.GetPath())
		at.field("timeout").zeroOrMore(h.GetTimeout())
		for i, header := range h.GetHeaders() {
			at.item("headers", i).providerHeader(header)
		}
	}
	if g := p.GetGrpc(); g != nil {
		at := s.field("grpc")
		at.field("timeout").zeroOrMore(g.GetTimeout())
		for i, header := range g.GetInitialMetadata() {
			at.item("initialMetadata", i).providerHeader(header)
		}
	}
}

func (s scope) providerHeader(h *meshconfig.MeshConfig_ExtensionProvider_HttpHeader) {
	if name := h.GetName(); strings.HasPrefix(name, ":") || strings.EqualFold(name, "host") {
		s.field("name").refuse(name, "this header is the request's own and cannot be changed here", "leave it out")
	}
	s.field("name").headerName(h.GetName())
	s.field("value").headerValue(h.GetValue())
}

// logPath checks the path of a file that proxies are to open; whether they can is for them to see.
func (s scope) logPath(file string) {
	switch {
	case strings.ContainsAny(file, "\r\n\x00"):
		s.refuse(file, "not the path of a file", "write it on one line")
	case file == "":
	case strings.HasSuffix(file, "/"), path.Clean(file) == ".":
		s.refuse(file, "a folder, not a file", "as in /dev/stdout")
	}
}

// roots are certificates of authorities. Agents take none of the mesh's roots, also not the authority's own, if one is bad.
func (s scope) roots(text string) {
	const remedy = "put in certificates of authorities, in PEM"
	size := fmt.Sprintf("%d bytes", len(text)) // never what is in it: it may be a key
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
		old := !cert.BasicConstraintsValid && cert.Version < 3 // says nothing of it
		if !cert.IsCA && !old && !bytes.Equal(cert.RawIssuer, cert.RawSubject) {
			s.refuse(cert.Subject, "it is not the certificate of an authority, so that no other leads to it", "put in that of "+cert.Issuer.String()+", which has signed it")
			return
		}
	}
	if n == 0 {
		s.refuse(size, "there is no certificate in it", remedy)
	}
}
