package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"
	"k8s.io/client-go/rest"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// Paths at which an API server publishes the issuer and the keys of its tokens. By default, each service account may
// read them.
const (
	discoveryPath = "/.well-known/openid-configuration"
	tokenKeysPath = "/openid/v1/jwks"
)

const (
	// keyRefresh is how often the keys are fetched. A removed key is accepted for at most this time.
	keyRefresh = 5 * time.Minute
	// minKeyFetchInterval is the minimum time between two fetches because a token names an unknown key. Clients select
	// the key that a token names.
	minKeyFetchInterval = 5 * time.Second
	keyFetchTimeout     = 5 * time.Second
	// maxKeyDocument is the maximum size of a response, in bytes. A key has about 400 bytes.
	maxKeyDocument = 256 << 10
	maxKeys        = 256
	// Accepted RSA keys, in bits. The verification with a larger key would use too much CPU time.
	minRSABits, maxRSABits = 2048, 8192
)

// tokenAlgorithms lists the algorithms with which API servers sign tokens.
var tokenAlgorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}

// errNoTokenKeys: the API server's keys were never fetched.
var errNoTokenKeys = fmt.Errorf("%w: the keys of the API server are not known yet", ca.ErrUnavailable)

// tokenKeys caches the public keys with which the API server signs tokens of service accounts. It is safe for
// concurrent use.
type tokenKeys struct {
	fetch func(ctx context.Context, path string) ([]byte, error)
	now   func() time.Time
	log   *slog.Logger

	fetches singleflight.Group

	mu        sync.Mutex
	issuer    string
	keys      map[string]jose.JSONWebKey // by key ID; nil until the first successful fetch
	attempted time.Time                  // time of the last fetch
}

func newTokenKeys(client rest.Interface, log *slog.Logger) *tokenKeys {
	return &tokenKeys{now: time.Now, log: log, fetch: func(ctx context.Context, path string) ([]byte, error) {
		return fetchDocument(ctx, client, path)
	}}
}

// fetchDocument fetches a document of at most maxKeyDocument bytes from the API server.
func fetchDocument(ctx context.Context, client rest.Interface, path string) ([]byte, error) {
	body, err := client.Get().AbsPath(path).SetHeader("Accept", contentJSON+", application/jwk-set+json").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	data, err := io.ReadAll(io.LimitReader(body, maxKeyDocument+1))
	if err == nil && len(data) > maxKeyDocument {
		err = fmt.Errorf("the document is larger than %d bytes", maxKeyDocument)
	}
	return data, err
}

// Run fetches the keys now and every keyRefresh, until ctx ends. If a fetch fails, the previous keys stay in use.
func (k *tokenKeys) Run(ctx context.Context) {
	retry := backoff.Backoff{Min: time.Second, Max: time.Minute}
	failing := false
	for {
		wait := keyRefresh
		if err := k.refresh(ctx); err != nil {
			wait = retry.Next()
			if ctx.Err() == nil && !failing {
				k.log.Warn("fetching the API server's keys for tokens failed; known keys stay in use, and without keys each token needs a TokenReview",
					"error", err, "remedy", "bind the ClusterRole system:service-account-issuer-discovery to the control plane's service account")
			}
			failing = true
		} else {
			retry.Reset()
			failing = false
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// refresh fetches the issuer and the keys. Concurrent calls share one fetch, which does not depend on their contexts.
func (k *tokenKeys) refresh(ctx context.Context) error {
	done := k.fetches.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), keyFetchTimeout)
		defer cancel()
		return nil, k.fetchNow(ctx)
	})
	select {
	case result := <-done:
		return result.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *tokenKeys) fetchNow(ctx context.Context) error {
	k.mu.Lock()
	k.attempted = k.now()
	k.mu.Unlock()
	document, err := k.fetch(ctx, discoveryPath)
	if err != nil {
		return fmt.Errorf("fetching %s: %w", discoveryPath, err)
	}
	var discovery struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(document, &discovery); err != nil || discovery.Issuer == "" {
		return fmt.Errorf("%s contains no issuer", discoveryPath)
	}
	set, err := k.fetch(ctx, tokenKeysPath)
	if err != nil {
		return fmt.Errorf("fetching %s: %w", tokenKeysPath, err)
	}
	keys, err := parseTokenKeys(set)
	if err != nil {
		return fmt.Errorf("%s: %w", tokenKeysPath, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.issuer, k.keys = discovery.Issuer, keys
	return nil
}

// parseTokenKeys parses a JWK set. It ignores keys that cannot verify tokens.
func parseTokenKeys(set []byte) (map[string]jose.JSONWebKey, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(set, &document); err != nil {
		return nil, fmt.Errorf("it is not a JWK set: %w", err)
	}
	if len(document.Keys) > maxKeys {
		return nil, fmt.Errorf("it contains %d keys; at most %d are accepted", len(document.Keys), maxKeys)
	}
	keys := map[string]jose.JSONWebKey{}
	for _, text := range document.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) == nil && isTokenKey(key) {
			keys[key.KeyID] = key
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("it contains no key that can verify tokens")
	}
	return keys, nil
}

func isTokenKey(key jose.JSONWebKey) bool {
	if key.KeyID == "" || key.Use != "" && key.Use != "sig" {
		return false
	}
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		return public.N.BitLen() >= minRSABits && public.N.BitLen() <= maxRSABits
	case *ecdsa.PublicKey:
		return true
	}
	return false
}

// lookup returns the key with an ID and the issuer of its tokens. It fetches the keys again if it does not know the key.
func (k *tokenKeys) lookup(ctx context.Context, id string) (key jose.JSONWebKey, issuer string, err error) {
	key, issuer, fetchable, known := k.find(id)
	if known {
		return key, issuer, nil
	}
	if fetchable {
		if err := k.refresh(ctx); err != nil {
			return key, "", fmt.Errorf("%w: %w", ca.ErrUnavailable, err)
		}
		if key, issuer, _, known = k.find(id); known {
			return key, issuer, nil
		}
		return key, "", fmt.Errorf("the token is signed with the key %.100q, which the API server does not publish. Another cluster may have issued it", id)
	}
	if issuer == "" {
		return key, "", errNoTokenKeys
	}
	return key, "", fmt.Errorf("%w: the token is signed with the unknown key %.100q, and the keys were just fetched", ca.ErrUnavailable, id)
}

// find returns a known key. fetchable is true if the keys may be fetched because of an unknown one.
func (k *tokenKeys) find(id string) (key jose.JSONWebKey, issuer string, fetchable, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, known = k.keys[id]
	return key, k.issuer, k.now().Sub(k.attempted) >= minKeyFetchInterval, known
}
