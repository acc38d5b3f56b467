package jwks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

// maxResponseSize is the maximum size of a response, in bytes. It exceeds the maximum size of a key set, because a
// response may contain keys that are not used.
const maxResponseSize = 4 * config.MaxKeySet

var (
	errTooManyRedirects = errors.New("the server redirects more than 3 times")
	errPlainRedirect    = errors.New("the server redirects to a URL that is not HTTPS")
)

// transport is an HTTP transport that refuses connections to addresses that guard forbids. If an HTTP proxy is
// configured, it checks the host to which the HTTP proxy would connect.
type transport struct {
	guard           fetchguard.Guard
	direct, proxied *http.Transport
}

func newClient(cfg Config) *http.Client {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	proxied := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		TLSClientConfig:        cfg.TLS,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: 64 << 10,
		DisableKeepAlives:      true, // fetches are minutes apart, so it is not useful to keep connections open
	}
	guarded := dialer
	guarded.ControlContext = cfg.Guard.Control
	direct := proxied.Clone()
	direct.Proxy, direct.DialContext = nil, func(ctx context.Context, network, address string) (net.Conn, error) {
		return guarded.DialContext(ctx, network, replaceHost(address, cfg.Hosts))
	}
	return &http.Client{Transport: &transport{cfg.Guard, direct, proxied}, CheckRedirect: checkRedirect}
}

// replaceHost replaces the host of an address "host:port" if hosts contains it.
func replaceHost(address string, hosts map[string]netip.Addr) string {
	host, port, err := net.SplitHostPort(address)
	if ip, ok := hosts[host]; err == nil && ok {
		return net.JoinHostPort(ip.String(), port)
	}
	return address
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	proxy, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return t.direct.RoundTrip(r)
	}
	if err := t.guard.CheckHost(r.Context(), r.URL.Hostname()); err != nil {
		return nil, err
	}
	return t.proxied.RoundTrip(r)
}

// checkRedirect refuses more than 3 redirects, and redirects from HTTPS to HTTP, because an attacker on the network
// could then replace the keys.
func checkRedirect(r *http.Request, via []*http.Request) error {
	switch {
	case len(via) > 3:
		return errTooManyRedirects
	case via[0].URL.Scheme == "https" && r.URL.Scheme != "https":
		return errPlainRedirect
	}
	return nil
}

// fetch returns the JWK set at the URL at. If at is the URL of a discovery document, fetch reads the URL of the JWK set
// from it.
func (f *Fetcher) fetch(ctx context.Context, at string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if issuer, ok := strings.CutSuffix(at, config.DiscoveryPath); ok {
		var err error
		if at, err = f.discover(ctx, issuer, at); err != nil {
			return "", err
		}
	}
	body, err := f.get(ctx, at)
	if err != nil {
		return "", err
	}
	keys, err := config.PublicKeys(body)
	if err != nil {
		return "", fmt.Errorf("the response is not usable: %w", err)
	}
	return string(keys), nil
}

// discover returns the URL of the keys of issuer, from the discovery document at the URL at (OpenID Connect Discovery
// 1.0, section 4).
func (f *Fetcher) discover(ctx context.Context, issuer, at string) (string, error) {
	body, err := f.get(ctx, at)
	if err != nil {
		return "", err
	}
	var document struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(body, &document); err != nil {
		return "", errors.New("the response is not a discovery document")
	}
	if strings.TrimSuffix(document.Issuer, "/") != issuer {
		return "", errors.New("the response is the discovery document of another issuer")
	}
	keys, err := url.Parse(document.Keys)
	if err != nil || keys.Host == "" || keys.Scheme != "https" && (keys.Scheme != "http" || strings.HasPrefix(at, "https:")) {
		return "", errors.New("the discovery document has no jwks_uri that can be used: it must be HTTPS, or HTTP if the document itself was fetched by HTTP")
	}
	return document.Keys, nil
}

// get returns the body of the response from the URL at. Its errors contain only the status code, and no other data that
// the server sent. Otherwise the author of a jwksUri could use the errors to read responses of servers that only the
// control plane can reach.
func (f *Fetcher) get(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, errors.New("the address is not a URL")
	}
	req.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := f.client.Do(req)
	switch {
	case errors.Is(err, errTooManyRedirects):
		return nil, errTooManyRedirects
	case errors.Is(err, errPlainRedirect):
		return nil, errPlainRedirect
	case err != nil:
		return nil, fetchguard.HideAnswer(err, invalidResponse)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server responds with status %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseSize+1))
	if err != nil {
		return nil, fetchguard.HideAnswer(err, invalidResponse)
	}
	if len(body) > maxResponseSize {
		return nil, fmt.Errorf("the response has more than %d bytes", maxResponseSize)
	}
	return body, nil
}

const invalidResponse = "the response is not valid HTTP"
