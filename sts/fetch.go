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
	"github.com/pilotfish-mesh/pilotfish/internal/disks"
	"github.com/pilotfish-mesh/pilotfish/internal/plainfile"
)

// mostToken is how long a workload's token may be.
const mostToken = 32 << 10

// FileFetcher reads the token from a file each time, as whoever projects it there replaces it.
type FileFetcher struct{ Path string }

// files may be on file systems that do not answer, which no question for a token waits for for long.
var files disks.Disks

// Fetch reads the file.
func (f FileFetcher) Fetch(context.Context) (Secret, error) {
	type found struct {
		token Secret
		err   error
	}
	came := make(chan found, 1)
	if err := files.Around(f.Path, func() {
		token, err := f.read()
		came <- found{token, err}
	}); err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	r := <-came
	return r.token, r.err
}

func (f FileFetcher) read() (Secret, error) {
	data, err := plainfile.Read(f.Path, mostToken)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the token file %s does not exist: mount the projected service account token there", f.Path)
	}
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := Secret(strings.TrimSpace(string(data)))
	if !isCredential(token) {
		return "", fmt.Errorf("the token file %s holds no token", f.Path)
	}
	return token, nil
}

// MetadataHost is where Google's machines are told of themselves.
const MetadataHost = "169.254.169.254"

// MetadataURL is the address of a metadata server, given as host or host:port.
func MetadataURL(host string) string { return "http://" + host + "/computeMetadata/v1" }

// What a token of the metadata server is kept for: it lives an hour, and is renewed in the last 25 minutes.
const (
	metadataAhead = 25 * time.Minute
	metadataPause = 10 * time.Second
)

// MetadataConfig says what the cloud's metadata server is asked for.
type MetadataConfig struct {
	// Audience is whom the token is for.
	Audience string
	// URL takes the place of that of MetadataHost.
	URL string
	// Now is time; nil is the machine's.
	Now func() time.Time
}

// MetadataFetcher gets an identity token from the metadata server of Google Cloud, and keeps it until its successor is
// there or it ends.
type MetadataFetcher struct {
	config MetadataConfig
	url    string
	*upstream
	turn chan struct{} // holds one: whose turn it is to look and to ask

	token   Secret
	expires time.Time
	retryAt time.Time
}

// NewMetadataFetcher checks the configuration.
func NewMetadataFetcher(config MetadataConfig) (*MetadataFetcher, error) {
	if config.Audience == "" {
		return nil, errors.New("sts: no audience for the metadata server's token")
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
		return nil, fmt.Errorf("sts: address of the metadata server %s: %w", config.URL, err)
	}
	return &MetadataFetcher{config: config, url: address, upstream: newUpstream(dial.TLS{}), turn: make(chan struct{}, 1)}, nil
}

// Fetch gives the token that is held, or asks for one.
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
		return "", fmt.Errorf("metadata server: %w", err)
	}
	f.token, f.expires, f.retryAt = token, expires, now.Add(metadataPause)
	return token, nil
}

func (f *MetadataFetcher) fetch(ctx context.Context, now time.Time) (Secret, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	r, err := f.ask(ctx, func(ctx context.Context) (*http.Request, error) {
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
		return "", time.Time{}, fmt.Errorf("it answered with status %d: see that the machine has a service account", r.status)
	}
	token := Secret(strings.TrimSpace(string(r.body)))
	got, err := (Check{}).verify(token, now)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("its token %w", err)
	}
	return token, got.expires, nil
}
