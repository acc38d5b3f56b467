package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// memberName is the module's file name in images that are not artifacts.
	memberName = "plugin.wasm"
	// maxLayers limits the layers of an image.
	maxLayers = 16
)

// wholeModule are the media types of layers that are a module, not an archive.
var wholeModule = []types.MediaType{
	"application/vnd.module.wasm.content.layer.v1+wasm",
	"application/wasm",
	"application/vnd.wasm.content.layer.v1+wasm",
}

// fromRegistry fetches an image: an artifact whose layer is the module, or an OCI or Docker image with a file plugin.wasm.
func (m *Modules) fromRegistry(ctx context.Context, reference string, module Module, known *entry) (*fetched, error) {
	options := []name.Option{name.WeakValidation}
	registry, _, _ := strings.Cut(reference, "/")
	if m.config.isTrusted(registry) {
		options = append(options, name.Insecure)
	}
	ref, err := name.ParseReference(reference, options...)
	if err != nil {
		return nil, unreadableError{fmt.Errorf("reading its reference: %w", err)}
	}
	auth, err := credentials(module.Secret, ref.Context())
	if err != nil {
		return nil, unreadableError{err}
	}
	descriptor, err := remote.Get(ref,
		remote.WithContext(ctx),
		remote.WithAuth(auth),
		remote.WithTransport(responseLimiter{m.config.transport(true)}),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}), // fetch retries
		remote.WithRetryStatusCodes(),
	)
	if err != nil {
		return nil, registryError(err)
	}
	image, err := descriptor.Image()
	if err != nil {
		return nil, registryError(err)
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, registryError(err)
	}
	switch pinned := module.SHA256; {
	case pinned != "" && pinned != digest.Hex && pinned != descriptor.Digest.Hex:
		return nil, fmt.Errorf("the image has the digest %s: %w", digest.Hex, errMismatch)
	case known != nil && known.Digest == digest.Hex:
		return nil, errUnchanged
	}
	f, err := m.fromImage(image)
	if err != nil {
		return nil, registryError(err)
	}
	f.digest = digest.Hex
	if module.SHA256 != "" {
		f.digest = module.SHA256 // possibly the digest of an index, which the next lookup contains
	}
	return f, nil
}

// maxResponse limits a registry's manifest and token responses, which are held in memory. Other registries and clients
// have the same limit.
const maxResponse = 4 << 20

// responseLimiter limits the size of a registry's responses, except layers.
type responseLimiter struct{ next http.RoundTripper }

func (s responseLimiter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := s.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	first := r
	for first.Response != nil && first.Response.Request != nil { // the request before redirects
		first = first.Response.Request
	}
	if !strings.Contains(first.URL.Path, "/blobs/") {
		response.Body = limitedBody{&limitedReader{from: response.Body, left: maxResponse}, response.Body}
	}
	return response, nil
}

type limitedBody struct {
	io.Reader
	io.Closer
}

// fromImage returns the module from the last layer that contains one, because later layers override earlier ones.
func (m *Modules) fromImage(image v1.Image) (*fetched, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	if len(layers) == 0 || len(layers) > maxLayers {
		return nil, unreadableError{fmt.Errorf("the image has %d layers; a module has 1 to %d", len(layers), maxLayers)}
	}
	for i := len(layers) - 1; ; i-- {
		f, err := m.fromLayer(layers[i])
		if err == nil || i == 0 || !errors.As(err, new(unreadableError)) {
			return f, err
		}
	}
}

func (m *Modules) fromLayer(layer v1.Layer) (*fetched, error) {
	size, err := layer.Size()
	if err != nil {
		return nil, err
	}
	if size > m.config.MaxSize {
		return nil, fmt.Errorf("a layer of the image has %d bytes: %w", size, errTooLarge)
	}
	kind, err := layer.MediaType()
	if err != nil {
		return nil, err
	}
	content, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	member := memberName
	for _, whole := range wholeModule {
		if kind == whole {
			member = ""
		}
	}
	return m.spool(content, member) // which reads to the end, where the layer's digest is verified
}

// registryError returns an error of the registry client without text of the registry.
func registryError(err error) error {
	if refused, ok := errors.AsType[*transport.Error](err); ok {
		return statusError{refused.StatusCode}
	}
	if isLocalError(err) {
		return err
	}
	if plain, ok := errors.AsType[plaintextError](err); ok {
		if first, ok := errors.AsType[*url.Error](err); ok && !errors.As(first, new(plaintextError)) {
			return fmt.Errorf("%w, and %w", redactError(first.Err), plain) // TLS failed, and plain text was tried after it
		}
		return plain
	}
	return redactError(err)
}

// isLocalError reports whether an error is one of this package, without text of the server.
func isLocalError(err error) bool {
	return errors.As(err, new(unreadableError)) || errors.As(err, new(*os.PathError))
}

// credentials returns the registry's credentials in a Docker configuration.
func credentials(secret []byte, repository name.Repository) (authn.Authenticator, error) {
	if len(secret) == 0 {
		return authn.Anonymous, nil
	}
	auths, err := parseDockerConfig(secret)
	if err != nil {
		return nil, err
	}
	if found, ok := auths.find(repository.RegistryStr(), repository.RepositoryStr()); ok {
		return authn.FromConfig(found), nil
	}
	return authn.Anonymous, nil
}
