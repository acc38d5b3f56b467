// Package dial connects the agent to the control plane and the certificate authority. It reads root certificates,
// client certificates and tokens from files that may change at any time.
package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// SystemRoots is the value of RootFile that selects the root certificates of the operating system.
const SystemRoots = "SYSTEM"

// TLS specifies how the agent verifies a server, and which client certificate it presents. All files are read again for
// each connection.
type TLS struct {
	// RootFile contains the trusted root certificates in PEM. SystemRoots or empty selects those of the operating
	// system.
	RootFile string
	// ServerName is the name that the server's certificate must contain. If it is empty, the certificate must contain
	// the host that Config receives.
	ServerName string
	// CertFile and KeyFile, if set, are the files of the client certificate and its key. If the certificate is missing
	// or expired, the client does not present it, and must authenticate with a token.
	CertFile, KeyFile string
	// Adjust, if set, changes the configuration of each connection, before Policy restricts it.
	Adjust func(*tls.Config) error
	// Policy restricts the TLS versions and cipher suites.
	Policy tlspolicy.Policy
}

// Config reads the files and returns the TLS configuration of one connection to host. It fails if it cannot read the
// root certificates.
func (t TLS) Config(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, NextProtos: []string{"h2"}}
	if c.ServerName == "" {
		c.ServerName = host
	}
	if t.RootFile != "" && t.RootFile != SystemRoots {
		roots, err := readRoots(t.RootFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = roots
	}
	if t.HasClientCertificate(time.Now()) {
		cert, err := t.loadClientCertificate()
		if err == nil {
			c.Certificates = []tls.Certificate{cert}
		}
	}
	if t.Adjust != nil {
		if err := t.Adjust(c); err != nil {
			return nil, err
		}
	}
	t.Policy.Narrow(c)
	return c, nil
}

func readRoots(file string) (*x509.CertPool, error) {
	pem, err := files.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the root certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading the root certificates: %s contains no PEM certificate", file)
	}
	return pool, nil
}

// loadClientCertificate reads the client certificate and its key.
func (t TLS) loadClientCertificate() (tls.Certificate, error) {
	cert, err := files.ReadFile(t.CertFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := files.ReadFile(t.KeyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// HasClientCertificate reports whether a client certificate is configured and valid at time now.
func (t TLS) HasClientCertificate(now time.Time) bool {
	if t.CertFile == "" || t.KeyFile == "" {
		return false
	}
	cert, err := t.loadClientCertificate()
	return err == nil && cert.Leaf != nil && now.Before(cert.Leaf.NotAfter) && !now.Before(cert.Leaf.NotBefore)
}

// clientCredentials returns gRPC credentials that read the files again at each handshake. If a handshake fails, they
// call failed with the error, because gRPC does not return it.
func (t TLS) clientCredentials(failed func(error)) credentials.TransportCredentials {
	return &clientCredentials{tls: t, onError: failed}
}

type clientCredentials struct {
	tls     TLS
	onError func(error)
}

func (c *clientCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.handshake(ctx, authority, raw)
	if err != nil {
		c.onError(err)
	}
	return conn, info, err
}

func (c *clientCredentials) handshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.tls.Config(splitHost(authority))
	if err != nil {
		return nil, nil, err
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, c.explain(err)
	}
	return conn, info, nil
}

func (c *clientCredentials) explain(err error) error { return c.tls.explain(err) }

func (t TLS) explain(err error) error {
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return fmt.Errorf("TLS: %w: the root of the server's certificate is not in %s", err, t.rootsName())
	}
	var notTLS tls.RecordHeaderError
	if errors.As(err, &notTLS) {
		return fmt.Errorf("TLS: %w: the server at this port does not use TLS (port 15012 uses TLS, port 15010 is plaintext)", err)
	}
	return fmt.Errorf("TLS: %w", err)
}

func (t TLS) rootsName() string {
	if t.RootFile == "" || t.RootFile == SystemRoots {
		return "the system's roots"
	}
	return t.RootFile
}

func splitHost(authority string) string {
	if host, _, err := net.SplitHostPort(authority); err == nil {
		return host
	}
	return authority
}

func (c *clientCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("dial: these are credentials for clients only")
}

func (c *clientCredentials) Info() credentials.ProtocolInfo {
	//lint:ignore SA1019 gRPC uses ServerName for verification if no authority is set
	return credentials.ProtocolInfo{SecurityProtocol: "tls", ServerName: c.tls.ServerName}
}

func (c *clientCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}

func (c *clientCredentials) OverrideServerName(name string) error {
	c.tls.ServerName = name
	return nil
}
