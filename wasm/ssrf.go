package wasm

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

// plaintextError reports a request without TLS to a host that requires it. The host is empty if it is the target of a
// redirect.
type plaintextError struct{ host string }

func (e plaintextError) Error() string {
	if e.host == "" {
		return "it redirects to a host without TLS; to allow this host, add it to WASM_INSECURE_REGISTRIES"
	}
	return fmt.Sprintf("requests to %s need TLS; to allow it without TLS, add it to WASM_INSECURE_REGISTRIES", e.host)
}

// isTrusted reports whether a host is exempt from certificate verification.
func (c *Config) isTrusted(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	return slices.ContainsFunc(c.Insecure, func(h string) bool { return h == "*" || h == hostport || h == host })
}

// roundTripper sends each request on a new connection: fetches are rare, and idle connections use memory.
type roundTripper struct {
	config               *Config
	verified, unverified *http.Transport
	// encrypted refuses requests without TLS to hosts that are not in Config.Insecure.
	encrypted bool
}

func (c *Config) transport(encrypted bool) *roundTripper {
	dialer := &net.Dialer{Timeout: 10 * time.Second, ControlContext: fetchguard.Guard{Blocked: c.Blocked}.Control}
	verified := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.Roots},
		TLSHandshakeTimeout:    10 * time.Second,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	c.Policy.Narrow(verified.TLSClientConfig)
	anyone := verified.Clone()
	anyone.TLSClientConfig.InsecureSkipVerify = true
	return &roundTripper{config: c, verified: verified, unverified: anyone, encrypted: encrypted}
}

func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	trusted := t.config.isTrusted(r.URL.Host)
	if t.encrypted && !trusted && r.URL.Scheme != "https" {
		if r.Response != nil { // a redirect, whose target is the server's text
			return nil, plaintextError{}
		}
		return nil, plaintextError{r.URL.Host}
	}
	if trusted {
		return t.unverified.RoundTrip(r)
	}
	return t.verified.RoundTrip(r)
}
