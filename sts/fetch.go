package sts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// maxToken limits the length of a workload's token, in bytes.
const maxToken = 32 << 10

// FileFetcher reads the token from a file. It reads the file each time, because the kubelet replaces it.
type FileFetcher struct{ Path string }

// files runs file system calls with a timeout, because a file system may hang.
var files fstimeout.TimeoutFS

// Fetch returns the content of the file.
func (f FileFetcher) Fetch(context.Context) (Secret, error) {
	type found struct {
		token Secret
		err   error
	}
	result := make(chan found, 1)
	if err := files.DoFile(f.Path, func() {
		token, err := f.read()
		result <- found{token, err}
	}); err != nil {
		return "", fmt.Errorf("reading the token file: %w", err)
	}
	r := <-result
	return r.token, r.err
}

func (f FileFetcher) read() (Secret, error) {
	data, err := regularfile.Read(f.Path, maxToken)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the token file %s does not exist: mount the projected service account token there", f.Path)
	}
	if err != nil {
		return "", fmt.Errorf("reading the token file: %w", err)
	}
	token := Secret(strings.TrimSpace(string(data)))
	if !isCredential(token) {
		return "", fmt.Errorf("the token file %s does not contain a token", f.Path)
	}
	return token, nil
}

// MetadataHost is the address of Google Cloud's metadata server.
const MetadataHost = "169.254.169.254"

// MetadataURL returns the URL of the metadata server at host, which may contain a port.
func MetadataURL(host string) string { return "http://" + host + "/computeMetadata/v1" }

// A token of the metadata server is valid for one hour. It is renewed in its last 25 minutes (metadataAhead). Between
// failed attempts there is a pause of at least metadataPause while the old token is valid.
const (
	metadataAhead = 25 * time.Minute
	metadataPause = 10 * time.Second
)

// MetadataConfig configures a MetadataFetcher.
type MetadataConfig struct {
	// Audience is the audience for which the token is requested.
	Audience string
	// URL is the URL of the metadata server; empty selects MetadataURL(MetadataHost).
	URL string
	// Now returns the time; nil: time.Now.
	Now func() time.Time
}

// MetadataFetcher fetches an identity token from Google Cloud's metadata server. It caches the token, and renews it
// before its expiry.
type MetadataFetcher struct {
	config MetadataConfig
	url    string
	*upstream
	turn chan struct{} // a mutex that can be acquired with a context

	token   Secret
	expires time.Time
	retryAt time.Time
}

// NewMetadataFetcher returns a MetadataFetcher, or an error for an invalid configuration.
func NewMetadataFetcher(config MetadataConfig) (*MetadataFetcher, error) {
	if config.Audience == "" {
		return nil, errors.New("sts: no audience is set for the metadata server's token")
	}
	if config.URL == "" {
		config.URL = MetadataURL(MetadataHost)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	address := strings.TrimSuffix(config.URL, "/") + "/instance/service-accounts/default/identity?" +
		url.Values{"audience": {config.Audience}, "format": {"full"}}.Encode()
	if _, err := http.NewRequest(http.MethodGet, address, nil); err != nil {
		return nil, fmt.Errorf("sts: invalid URL of the metadata server %s: %w", config.URL, err)
	}
	return &MetadataFetcher{config: config, url: address, upstream: newUpstream(dial.TLS{}), turn: make(chan struct{}, 1)}, nil
}

// Fetch returns the cached token, or fetches a new one if the cached token expires soon. If that fails, it returns the
// cached token while it is valid.
func (f *MetadataFetcher) Fetch(ctx context.Context) (Secret, error) {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	now := f.config.Now()
	left := f.expires.Sub(now)
	if left > metadataAhead || (left > 0 && now.Before(f.retryAt)) {
		return f.token, nil
	}
	token, expires, err := f.fetch(ctx, now)
	if err != nil {
		f.retryAt = now.Add(metadataPause)
		if left > 0 {
			return f.token, nil
		}
		return "", fmt.Errorf("requesting a token from the metadata server: %w", err)
	}
	f.token, f.expires, f.retryAt = token, expires, now.Add(metadataPause)
	return token, nil
}

func (f *MetadataFetcher) fetch(ctx context.Context, now time.Time) (Secret, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	r, err := f.send(ctx, func(ctx context.Context) (*http.Request, error) {
		get, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
		if err == nil {
			get.Header.Set("Metadata-Flavor", "Google")
		}
		return get, err
	})
	if err != nil {
		return "", time.Time{}, err
	}
	if r.status != http.StatusOK {
		return "", time.Time{}, fmt.Errorf("the response has status %d: check that the machine has a service account", r.status)
	}
	token := Secret(strings.TrimSpace(string(r.body)))
	got, err := (Check{}).verify(token, now)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("the token %w", err)
	}
	return token, got.expires, nil
}
