package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Schemes of configuration source addresses. Addresses with other schemes have no effect.
const (
	SchemeFiles = "fs"
	SchemeXDS   = "xds"
)

// SourceAddress is the parsed address of a configuration source.
type SourceAddress struct {
	Scheme string
	// Path is the directory of a source with the scheme fs.
	Path string
	// HostPort is the address of the server of a source with the scheme xds.
	HostPort string
}

// ParseSourceAddress parses the address of a configuration source. For an unknown scheme, it returns only the scheme,
// and no error.
func ParseSourceAddress(address string) (SourceAddress, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return SourceAddress{}, errors.New("not an address: use xds://HOST:PORT or fs:///DIRECTORY")
	}
	a := SourceAddress{Scheme: u.Scheme}
	switch u.Scheme {
	case SchemeFiles:
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return a, errors.New("no absolute path: use fs:///DIRECTORY, with three slashes")
		}
		a.Path = u.Path
	case SchemeXDS:
		if u.Hostname() == "" || u.Port() == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
			return a, errors.New("not the address of an xDS server: use xds://HOST:PORT")
		}
		a.HostPort = net.JoinHostPort(u.Hostname(), u.Port())
	}
	return a, nil
}

// checkConfigSources returns an error for the first configuration source that cannot be used. Unsupported tlsSettings
// are an error. Istio connects in plaintext instead, so that anyone on the path of the connection can change the
// configuration.
func checkConfigSources(mesh *meshconfig.MeshConfig) error {
	seen := map[string]bool{}
	for i, source := range mesh.GetConfigSources() {
		at := fmt.Sprintf("configSources[%d]", i)
		address, err := ParseSourceAddress(source.GetAddress())
		switch {
		case err != nil:
			return fmt.Errorf("%s.address: %q: %w", at, source.GetAddress(), err)
		case seen[source.GetAddress()]:
			return fmt.Errorf("%s.address: %q: another source has this address: remove one of the two sources", at, source.GetAddress())
		}
		seen[source.GetAddress()] = true
		if address.Scheme != SchemeXDS {
			continue
		}
		if field, err := checkSourceTLS(source.GetTlsSettings()); err != nil {
			return fmt.Errorf("%s.tlsSettings.%s: %w", at, field, err)
		}
	}
	return nil
}

func checkSourceTLS(t *networking.ClientTLSSettings) (field string, err error) {
	mode := t.GetMode()
	switch {
	case mode == networking.ClientTLSSettings_DISABLE:
		return "", nil
	case mode == networking.ClientTLSSettings_ISTIO_MUTUAL:
		return "mode", errors.New("ISTIO_MUTUAL is not supported for a configuration source: use MUTUAL with the files of a certificate, or SIMPLE with --config-source-token-file")
	case t.GetCredentialName() != "":
		return "credentialName", errors.New("not supported for a configuration source: set caCertificates, and for MUTUAL clientCertificate and privateKey")
	case t.GetCaCrl() != "":
		return "caCrl", errors.New("not supported for a configuration source: remove the field")
	case t.GetInsecureSkipVerify().GetValue() && (t.GetCaCertificates() != "" || len(t.GetSubjectAltNames()) > 0):
		return "insecureSkipVerify", errors.New("cannot be combined with caCertificates or subjectAltNames: remove insecureSkipVerify, so that the server is verified")
	case mode == networking.ClientTLSSettings_MUTUAL && t.GetClientCertificate() == "":
		return "clientCertificate", errors.New("mode MUTUAL needs a client certificate: set the path of its file")
	case mode == networking.ClientTLSSettings_MUTUAL && t.GetPrivateKey() == "":
		return "privateKey", errors.New("mode MUTUAL needs a private key: set the path of its file")
	}
	return "", nil
}

// questionConfigSources returns a warning for each configuration source that has no effect, and for each connection
// that is not encrypted or whose server is not verified.
func questionConfigSources(mesh *meshconfig.MeshConfig) []Problem {
	var out []Problem
	for i, source := range mesh.GetConfigSources() {
		at := fmt.Sprintf("configSources[%d]", i)
		address, err := ParseSourceAddress(source.GetAddress())
		if err != nil {
			continue // CheckMesh reports it
		}
		if len(source.GetSubscribedResources()) > 0 {
			out = append(out, Problem{Severity: Warning, Code: NoEffect, Field: at + ".subscribedResources", Message: "has no effect in this version", Remedy: noSubstitute})
		}
		p := Problem{Severity: Warning, Code: NoEffect, Field: at + ".address", Value: source.GetAddress()}
		switch tls := source.GetTlsSettings(); {
		case address.Scheme != SchemeFiles && address.Scheme != SchemeXDS:
			p.Message, p.Remedy = "sources of this scheme have no effect in this version", "use xds://HOST:PORT or fs:///DIRECTORY"
		case address.Scheme == SchemeFiles || isLoopbackHost(address.HostPort):
			continue
		case tls.GetMode() == networking.ClientTLSSettings_DISABLE:
			p.Code, p.Message, p.Remedy = Questionable, "the connection is not encrypted: anyone on its path can change the configuration of the mesh", "set tlsSettings"
		case tls.GetInsecureSkipVerify().GetValue():
			p.Code, p.Message, p.Remedy = Questionable, "the server is not verified: anyone on the path of the connection can change the configuration of the mesh", "set caCertificates instead of insecureSkipVerify"
		default:
			continue
		}
		out = append(out, p)
	}
	return out
}

func isLoopbackHost(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	ip, parseErr := netip.ParseAddr(host)
	return err == nil && (parseErr == nil && ip.IsLoopback() || host == "localhost")
}
