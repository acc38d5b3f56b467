package wasm

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

// plaintextError is the error of a refused request without TLS: the host is not in Config.Insecure. The host is empty if
// a redirect specified it.
type plaintextError struct{ host string }

func (e plaintextError) Error() string {
	if e.host == "" {
		return "the server redirects to a host without TLS; to allow this, add the host to WASM_INSECURE_REGISTRIES"
	}
	return fmt.Sprintf("requests to %s require TLS; to allow requests without TLS, add the host to WASM_INSECURE_REGISTRIES", e.host)
}

// isTrusted reports whether a host is in Insecure, so that its certificate is not verified.
func (c *Config) isTrusted(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	return slices.ContainsFunc(c.Insecure, func(h string) bool { return h == "*" || h == hostport || h == host })
}

// roundTripper sends HTTP requests, with or without verification of the server's certificate. Each request has a new
// connection, because fetches are rare and idle connections use memory.
type roundTripper struct {
	config               *Config
	verified, unverified *http.Transport
	// encrypted: requests without TLS are refused unless the host is in Config.Insecure.
	encrypted bool
}

// transport returns a roundTripper for all requests of one fetch, including those to redirect targets and token servers,
// which the server chooses. host is the host of the module's URL. If it is not a loopback address, connections to loopback
// are refused.
func (c *Config) transport(encrypted bool, host string) *roundTripper {
	guard := fetchguard.Guard{Blocked: c.Blocked, NoLoopback: !isLoopback(host)}
	dialer := &net.Dialer{Timeout: 10 * time.Second, ControlContext: guard.Control}
	verified := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.Roots},
		TLSHandshakeTimeout:    10 * time.Second,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	c.Policy.Narrow(verified.TLSClientConfig)
	unverified := verified.Clone()
	unverified.TLSClientConfig.InsecureSkipVerify = true
	return &roundTripper{config: c, verified: verified, unverified: unverified, encrypted: encrypted}
}

// isLoopback reports whether a host with an optional port is a loopback address or localhost. A DNS name is not, because its
// owner can change its address between requests.
func isLoopback(hostport string) bool {
	host := (&url.URL{Host: hostport}).Hostname()
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	trusted := t.config.isTrusted(r.URL.Host)
	if t.encrypted && !trusted && r.URL.Scheme != "https" {
		if r.Response != nil { // a redirect; the error must not contain the host, which the server chose
			return nil, plaintextError{}
		}
		return nil, plaintextError{r.URL.Host}
	}
	if trusted {
		return t.unverified.RoundTrip(r)
	}
	return t.verified.RoundTrip(r)
}
