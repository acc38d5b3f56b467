// Package dial is how the agent reaches the control plane and the certificate authority: TLS by a root file that may
// change, a client certificate that may change, a token file that may change.
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

// SystemRoots, as a root file, stands for the roots of the operating system.
const SystemRoots = "SYSTEM"

// TLS says how a server is verified. Every file is read anew for every connection.
type TLS struct {
	// RootFile holds the PEM certificates that the server's has to lead to; SystemRoots, or empty, is the system's.
	RootFile string
	// ServerName is the name that the server's certificate must have; empty is the host of the address dialled.
	ServerName string
	// CertFile and KeyFile, when set, are a client certificate. One that is missing or expired is not presented: the
	// token has to do then.
	CertFile, KeyFile string
	// Policy narrows what is offered to the server.
	Policy tlspolicy.Policy
}

// Config reads the files and gives the configuration for one connection to a server of the given name.
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
		cert, err := t.clientCertificate()
		if err == nil {
			c.Certificates = []tls.Certificate{cert}
		}
	}
	t.Policy.Narrow(c)
	return c, nil
}

func readRoots(file string) (*x509.CertPool, error) {
	pem, err := files.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("root certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("root certificates: %s holds no PEM certificate", file)
	}
	return pool, nil
}

// clientCertificate reads the certificate and its key.
func (t TLS) clientCertificate() (tls.Certificate, error) {
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

// HasClientCertificate says whether there is a client certificate that is valid at the time.
func (t TLS) HasClientCertificate(now time.Time) bool {
	if t.CertFile == "" || t.KeyFile == "" {
		return false
	}
	cert, err := t.clientCertificate()
	return err == nil && cert.Leaf != nil && now.Before(cert.Leaf.NotAfter) && !now.Before(cert.Leaf.NotBefore)
}

// clientCredentials are gRPC credentials that read the files anew at each handshake, and tell of every handshake that
// fails: gRPC itself only says so in passing.
func (t TLS) clientCredentials(failed func(error)) credentials.TransportCredentials {
	return &clientCredentials{tls: t, failed: failed}
}

type clientCredentials struct {
	tls    TLS
	failed func(error)
}

func (c *clientCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.handshake(ctx, authority, raw)
	if err != nil {
		c.failed(err)
	}
	return conn, info, err
}

func (c *clientCredentials) handshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.tls.Config(hostOf(authority))
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
		return fmt.Errorf("TLS: %w: its root is not in %s", err, t.rootsName())
	}
	var notTLS tls.RecordHeaderError
	if errors.As(err, &notTLS) {
		return fmt.Errorf("TLS: %w: the port speaks plaintext (15012 is the TLS port, 15010 the plaintext one)", err)
	}
	return fmt.Errorf("TLS: %w", err)
}

func (t TLS) rootsName() string {
	if t.RootFile == "" || t.RootFile == SystemRoots {
		return "the system's roots"
	}
	return t.RootFile
}

func hostOf(authority string) string {
	if host, _, err := net.SplitHostPort(authority); err == nil {
		return host
	}
	return authority
}

func (c *clientCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("dial: these are credentials for clients only")
}

func (c *clientCredentials) Info() credentials.ProtocolInfo {
	//lint:ignore SA1019 gRPC verifies by it, for whoever sets no authority
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
