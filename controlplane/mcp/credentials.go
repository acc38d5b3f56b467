package mcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// NewServer returns the connection settings for a source. settings are the tlsSettings of the source, which the caller
// has validated. tokenFile is the path of a file with a bearer token, or "". The token is not sent to a server whose
// certificate is not verified.
func NewServer(settings *networking.ClientTLSSettings, tokenFile string, policy tlspolicy.Policy) dial.Server {
	if settings.GetMode() == networking.ClientTLSSettings_DISABLE {
		return dial.Server{Plaintext: true}
	}
	server := dial.Server{TokenFile: tokenFile, TLS: dial.TLS{ServerName: settings.GetSni(), Policy: policy}}
	if settings.GetMode() == networking.ClientTLSSettings_MUTUAL {
		server.TLS.CertFile, server.TLS.KeyFile = settings.GetClientCertificate(), settings.GetPrivateKey()
	}
	// Istio's control plane expects PEM certificates in caCertificates, whereas the API documents a path. Both are
	// accepted here.
	roots := settings.GetCaCertificates()
	inline := strings.Contains(roots, "-----BEGIN")
	if !inline {
		server.TLS.RootFile = roots
	}
	if settings.GetInsecureSkipVerify().GetValue() {
		server.TokenFile = ""
	}
	server.TLS.Adjust = func(c *tls.Config) error {
		if inline {
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM([]byte(roots)) {
				return errors.New("caCertificates contains no PEM certificate")
			}
		}
		c.InsecureSkipVerify = settings.GetInsecureSkipVerify().GetValue()
		if names := settings.GetSubjectAltNames(); len(names) > 0 {
			c.VerifyConnection = func(state tls.ConnectionState) error { return checkNames(state.PeerCertificates[0], names) }
		}
		return nil
	}
	return server
}

// checkNames returns an error unless names contains a DNS name or URI of the certificate.
func checkNames(cert *x509.Certificate, names []string) error {
	has := slices.Clone(cert.DNSNames)
	for _, uri := range cert.URIs {
		has = append(has, uri.String())
	}
	if slices.ContainsFunc(has, func(name string) bool { return slices.Contains(names, name) }) {
		return nil
	}
	return fmt.Errorf("the server's certificate contains none of the names in subjectAltNames: its names are %s", strings.Join(has, ", "))
}
