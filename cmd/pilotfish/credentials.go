package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

// credentials contains the flags for authentication to a control plane.
type credentials struct{ tokenFile, cert, key, rootCert string }

func (c *credentials) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.tokenFile, "token-file", "", "with --control-plane: file with a token that 'pilotfish token' issued, which authenticates this command at port 15016")
	f.StringVar(&c.cert, "cert", "", "with --control-plane: PEM file with a certificate of the mesh, which authenticates this command")
	f.StringVar(&c.key, "key", "", "PEM file with the private key of the certificate of --cert")
	f.StringVar(&c.rootCert, "root-cert", "", "PEM file with the root certificates that verify the control plane (default: the system's)")
	usage.SetTogether(cmd, "cert", "key")
}

func (c *credentials) isSet() bool { return c.tokenFile != "" || c.cert != "" }

// base returns the URL of the control plane at address. If address has no scheme, the scheme is https if credentials or
// root certificates are set, and http otherwise. base returns an error if credentials would be sent over http.
func (c *credentials) base(address string) (string, error) {
	base := strings.TrimSuffix(address, "/")
	if !strings.Contains(base, "://") {
		scheme := "http://"
		if c.isSet() || c.rootCert != "" {
			scheme = "https://"
		}
		base = scheme + base
	}
	u, err := url.Parse(base)
	if err != nil {
		return "", usageError{fmt.Errorf("--control-plane %q is not an address: use HOST:PORT or a URL", address)}
	}
	if c.isSet() && u.Scheme != "https" && !isLoopbackHost(u.Hostname()) {
		return "", usageError{errors.New("tokens and certificates are sent only over HTTPS: use the address https://HOST:15016")}
	}
	return base, nil
}

func isLoopbackHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

// client returns an HTTP client for base that sends the credentials. It follows no redirects, which could send the
// credentials to another host.
func (c *credentials) client(base string) (*http.Client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, usageError{err}
	}
	transport := &http.Transport{ForceAttemptHTTP2: true, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext}
	if u.Scheme == "https" {
		transport.TLSClientConfig, err = dial.TLS{RootFile: c.rootCert, CertFile: c.cert, KeyFile: c.key}.Config(u.Hostname())
		if err != nil {
			return nil, err
		}
	}
	refuseRedirects := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Timeout: time.Minute, Transport: &tokenSender{c.tokenFile, transport}, CheckRedirect: refuseRedirects}, nil
}

// tokenSender is an HTTP transport that adds the token in file to each request.
type tokenSender struct {
	file string
	next http.RoundTripper
}

func (t *tokenSender) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.file != "" {
		token, err := dial.ReadToken(t.file)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return t.next.RoundTrip(r)
}
