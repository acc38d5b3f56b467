package jwks

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// largestAnswer bounds what is read: more than a set of keys may have, for sets say more than is kept.
const largestAnswer = 4 * config.MaxKeySet

func newClient(roots *tls.Config) *http.Client {
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		TLSClientConfig:        roots,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: 64 << 10,
		DisableKeepAlives:      true, // minutes pass between two looks
	}
	return &http.Client{Transport: transport, CheckRedirect: checkRedirect}
}

// checkRedirect follows a few redirects, and never from HTTPS into the clear: whoever sits there could give any keys.
func checkRedirect(r *http.Request, via []*http.Request) error {
	switch {
	case len(via) > 3:
		return errors.New("more than 3 redirects")
	case via[0].URL.Scheme == "https" && r.URL.Scheme != "https":
		return fmt.Errorf("it redirects to %s, which is not HTTPS", r.URL.Redacted())
	}
	return nil
}

// fetch gets the keys at an address: a JWK set, or the discovery document that says where it is.
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
		return "", fmt.Errorf("%s: %w", at, err)
	}
	return string(keys), nil
}

// discover finds the keys of an issuer (OpenID Connect Discovery 1.0, section 4).
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
		return "", fmt.Errorf("%s is no discovery document", at)
	}
	if strings.TrimSuffix(document.Issuer, "/") != issuer {
		return "", fmt.Errorf("%s is the discovery document of %.200q, and not of the issuer", at, document.Issuer)
	}
	keys, err := url.Parse(document.Keys)
	if err != nil || keys.Host == "" || keys.Scheme != "https" && (keys.Scheme != "http" || strings.HasPrefix(at, "https:")) {
		return "", fmt.Errorf("%s gives no address of keys that can be used: %.200q", at, document.Keys)
	}
	return document.Keys, nil
}

func (f *Fetcher) get(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", at, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, largestAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if len(body) > largestAnswer {
		return nil, fmt.Errorf("%s answers with more than %d bytes", at, largestAnswer)
	}
	return body, nil
}
