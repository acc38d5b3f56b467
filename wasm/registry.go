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
	// memberName is the file name of the module in a container image.
	memberName = "plugin.wasm"
	// maxLayers is the maximum number of layers of an accepted image.
	maxLayers = 16
)

// wholeModule are the media types of layers that consist of the module instead of an archive.
var wholeModule = []types.MediaType{
	"application/vnd.module.wasm.content.layer.v1+wasm",
	"application/wasm",
	"application/vnd.wasm.content.layer.v1+wasm",
}

// fromRegistry fetches a module from an OCI registry. The image is either an OCI artifact whose layer is the module, or a
// container image (OCI or Docker) that contains the file plugin.wasm.
func (m *Modules) fromRegistry(ctx context.Context, reference string, module Module, known *entry) (*fetched, error) {
	options := []name.Option{name.WeakValidation}
	registry, _, _ := strings.Cut(reference, "/")
	if m.config.isTrusted(registry) {
		options = append(options, name.Insecure)
	}
	ref, err := name.ParseReference(reference, options...)
	if err != nil {
		return nil, unreadableError{fmt.Errorf("reading the image reference: %w", err)}
	}
	auth, err := credentials(module.Secret, ref.Context())
	if err != nil {
		return nil, unreadableError{err}
	}
	descriptor, err := remote.Get(ref,
		remote.WithContext(ctx),
		remote.WithAuth(auth),
		remote.WithTransport(responseLimiter{m.config.transport(true, registry)}),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}), // no retries here: Modules.fetch retries
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
		f.digest = module.SHA256 // may be the digest of an image index; the next lookup in the cache uses it
	}
	return f, nil
}

// maxResponse limits the size in bytes of a registry's manifests and token responses, which are buffered in memory. It
// is the usual limit of registries and clients.
const maxResponse = 4 << 20

// responseLimiter limits the size of all responses of a registry except layers, which are not buffered.
type responseLimiter struct{ next http.RoundTripper }

func (s responseLimiter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := s.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	first := r
	for first.Response != nil && first.Response.Request != nil { // find the original request before redirects
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
		return nil, unreadableError{fmt.Errorf("the image has %d layers; the image of a module must have 1 to %d", len(layers), maxLayers)}
	}
	for i := len(layers) - 1; ; i-- {
		f, err := m.fromLayer(layers[i])
		if err == nil || i == 0 || !errors.As(err, new(unreadableError)) {
			return f, err
		}
	}
}

// fromLayer returns the module in a layer.
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
	return m.spool(content, member) // reads to the end of the layer, where its digest is verified
}

// registryError returns an error of the registry client without text that the registry sent.
func registryError(err error) error {
	if refused, ok := errors.AsType[*transport.Error](err); ok {
		return statusError{refused.StatusCode}
	}
	if isLocalError(err) {
		return err
	}
	if plain, ok := errors.AsType[plaintextError](err); ok {
		if first, ok := errors.AsType[*url.Error](err); ok && !errors.As(first, new(plaintextError)) {
			return fmt.Errorf("%w, and %w", redactError(first.Err), plain) // the client tried TLS, which failed, and then plaintext
		}
		return plain
	}
	return redactError(err)
}

// isLocalError reports whether err is an error of this package or of a file operation. Such an error contains no text
// that the server sent.
func isLocalError(err error) bool {
	return errors.As(err, new(unreadableError)) || errors.As(err, new(*os.PathError))
}

// credentials returns the credentials for the repository in a pull secret, or Anonymous if there are none.
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
