package wasm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// metadata are addresses, besides link-local ones, at which clouds tell a machine its secrets.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
	netip.MustParsePrefix("fd00:ec2::/32"),      // Amazon
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google
}

// translated are prefixes whose addresses hold IPv4 addresses in their last four bytes.
var translated = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("::/96")}

var errBlocked = errors.New("modules are not fetched from there")

// plaintextError is of hosts that would be asked without TLS.
type plaintextError struct{ host string }

func (e plaintextError) Error() string {
	return fmt.Sprintf("%s is not asked without TLS; if it has none, name it in WASM_INSECURE_REGISTRIES", e.host)
}

// allowed says whether modules may be fetched from an address.
func (c *Config) allowed(address netip.Addr) bool {
	ip := address.Unmap().WithZone("")
	if slices.ContainsFunc(translated, func(p netip.Prefix) bool { return p.Contains(ip) }) && ip != netip.IPv6Loopback() {
		bytes := ip.As16()
		return c.allowed(netip.AddrFrom4([4]byte(bytes[12:])))
	}
	if !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(metadata, c.Blocked), func(p netip.Prefix) bool { return p.Contains(ip) })
}

// guard refuses connections at the last moment, when the address is known that a name really stands for.
func (c *Config) guard(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: %w", address, errBlocked)
	}
	if !c.allowed(to.Addr()) {
		return fmt.Errorf("%s: %w: it is a link-local, metadata or blocked address", to.Addr(), errBlocked)
	}
	return nil
}

// trusted says whether a host may do without a certificate that can be verified.
func (c *Config) trusted(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	return slices.ContainsFunc(c.Insecure, func(h string) bool { return h == "*" || h == hostport || h == host })
}

// roundTripper sends requests, each on a connection of its own: fetches are rare, and idle connections cost.
type roundTripper struct {
	config           *Config
	verified, anyone *http.Transport
	// encrypted refuses requests without TLS to hosts that are not trusted to do without.
	encrypted bool
}

func (c *Config) transport(encrypted bool) *roundTripper {
	dialer := &net.Dialer{Timeout: 10 * time.Second, ControlContext: c.guard}
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
	return &roundTripper{config: c, verified: verified, anyone: anyone, encrypted: encrypted}
}

func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	trusted := t.config.trusted(r.URL.Host)
	if t.encrypted && !trusted && r.URL.Scheme != "https" {
		return nil, plaintextError{r.URL.Host}
	}
	if trusted {
		return t.anyone.RoundTrip(r)
	}
	return t.verified.RoundTrip(r)
}
