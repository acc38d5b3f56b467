package wasm

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// imageRegistry is a registry with TLS and, optionally, a required password.
type imageRegistry struct {
	*origin
	password string
	roots    func(*Config)
	blobs    int
}

func newRegistry(t testing.TB) *imageRegistry {
	r := &imageRegistry{origin: &origin{}}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.now(func(w http.ResponseWriter, q *http.Request) {
		_, password, _ := q.BasicAuth()
		if r.password != "" && password != r.password {
			w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.Contains(q.URL.Path, "/blobs/") {
			r.blobs++
		}
		images.ServeHTTP(w, q)
	})
	authority := testpki.New(t, "registry")
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.TLS = authority.ServerConfig(t, "127.0.0.1")
	r.StartTLS()
	t.Cleanup(r.Close)
	r.roots = func(c *Config) { c.Roots = authority.Pool() }
	return r
}

func (r *imageRegistry) host() string { return r.Listener.Addr().String() }

// push stores an image in the registry and returns its digest in hex.
func (r *imageRegistry) push(t testing.TB, at string, image v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(r.host() + "/" + at)
	if err != nil {
		t.Fatal(err)
	}
	c := &Config{}
	r.roots(c)
	password := r.password
	r.password = ""
	defer func() { r.password = password }()
	if err := remote.Write(ref, image, remote.WithTransport(c.transport(true, r.host()))); err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.Hex
}

func imageOf(t testing.TB, manifest, config types.MediaType, layers ...v1.Layer) v1.Image {
	t.Helper()
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, manifest), config), layers...)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func artifact(t testing.TB, module []byte) v1.Image {
	return imageOf(t, types.OCIManifestSchema1, "application/vnd.module.wasm.config.v1+json", static.NewLayer(module, wholeModule[0]))
}

func TestModuleIsReadFromEachVariantOfAnImage(t *testing.T) {
	r := newRegistry(t)
	packed := zipped(tarOf("./plugin.wasm", string(tiny)))
	noise := zipped(tarOf("etc/passwd", "root"))
	for at, image := range map[string]v1.Image{
		"artifact:v1": artifact(t, tiny),
		"new:v1":      imageOf(t, types.OCIManifestSchema1, "application/vnd.wasm.config.v0+json", static.NewLayer(tiny, "application/wasm")),
		"compat:v1":   imageOf(t, types.OCIManifestSchema1, types.OCIConfigJSON, static.NewLayer(packed, types.OCILayer)),
		"docker:v1":   imageOf(t, types.DockerManifestSchema2, types.DockerConfigJSON, static.NewLayer(packed, types.DockerLayer)),
		"layers:v1":   imageOf(t, types.DockerManifestSchema2, types.DockerConfigJSON, static.NewLayer(packed, types.DockerLayer), static.NewLayer(noise, types.DockerLayer)),
	} {
		r.push(t, at, image)
		if got := content(t, running(t, r.roots), Module{URL: "oci://" + r.host() + "/" + at}); !bytes.Equal(got, tiny) {
			t.Errorf("%s: %d bytes", at, len(got))
		}
	}
	r.push(t, "none:v1", imageOf(t, types.OCIManifestSchema1, types.OCIConfigJSON, static.NewLayer(noise, types.OCILayer)))
	if _, err := running(t, r.roots).File(context.Background(), Module{URL: "oci://" + r.host() + "/none:v1"}); err == nil || !strings.Contains(err.Error(), "plugin.wasm") {
		t.Errorf("an image without a module: %v", err)
	}
	r.push(t, "large:v1", artifact(t, append(bytes.Clone(tiny), make([]byte, 4096)...)))
	small := func(c *Config) { r.roots(c); c.MaxSize = 1024 }
	if _, err := running(t, small).File(context.Background(), Module{URL: "oci://" + r.host() + "/large:v1"}); !errors.Is(err, errTooLarge) {
		t.Errorf("a large image: %v", err)
	}
}

func TestImageIsPinnedByDigest(t *testing.T) {
	r := newRegistry(t)
	digest := r.push(t, "a:v1", artifact(t, tiny))
	m := running(t, r.roots)
	at := "oci://" + r.host() + "/a:v1"
	content(t, m, Module{URL: at, SHA256: digest})
	asked := r.requests.Load()
	content(t, m, Module{URL: at, SHA256: digest})
	if r.requests.Load() != asked {
		t.Error("the registry was queried for an image that is pinned and cached")
	}
	content(t, m, Module{URL: "oci://" + r.host() + "/a@sha256:" + digest})
	if _, err := m.File(context.Background(), Module{URL: at, SHA256: sumOf(other)}); !errors.Is(err, errMismatch) {
		t.Errorf("another digest: %v", err)
	}
}

func TestImageIsFetchedAgainWhenItsTagMoves(t *testing.T) {
	r := newRegistry(t)
	r.push(t, "a:latest", artifact(t, tiny))
	m := running(t, r.roots)
	wanted := Module{URL: "oci://" + r.host() + "/a:latest", Always: true}
	content(t, m, wanted)
	blobs := r.blobs
	content(t, m, wanted)
	if r.blobs != blobs {
		t.Error("an unchanged image was fetched again")
	}
	r.push(t, "a:latest", artifact(t, other))
	if got := content(t, m, wanted); !bytes.Equal(got, other) {
		t.Error("the old module was returned")
	}
	r.Close()
	if got := content(t, m, wanted); !bytes.Equal(got, other) {
		t.Error("the cached module is not usable without the registry")
	}
}

func secretFor(host, password string) []byte {
	auth := base64.StdEncoding.EncodeToString([]byte("me:" + password))
	return fmt.Appendf(nil, `{"auths": {"other.example": {"auth": "eDp5"}, %q: {"auth": %q}}, "credsStore": "evil"}`, host, auth)
}

func TestPullSecretIsSentOnlyToItsRegistry(t *testing.T) {
	r := newRegistry(t)
	r.push(t, "private/a:v1", artifact(t, tiny))
	r.password = "hunter2"
	at := "oci://" + r.host() + "/private/a:v1"
	for host, works := range map[string]bool{
		r.host(): true, "https://" + r.host() + "/v1/": true, r.host() + "/private": true, r.host() + "/public": false, "elsewhere.example": false,
	} {
		_, err := running(t, r.roots).File(context.Background(), Module{URL: at, Secret: secretFor(host, "hunter2")})
		if works != (err == nil) {
			t.Errorf("a secret for %s: %v", host, err)
		}
	}
	for _, secret := range []string{"", "{}", `{"auths": `, `{"auths": {"a": {"auth": "!"}}}`, string(secretFor(r.host(), "wrong"))} {
		_, err := running(t, r.roots).File(context.Background(), Module{URL: at, Secret: []byte(secret)})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("secret %q: %v", secret, err)
		}
	}
}

// For registries in private networks, the registry library would fall back to plaintext and send the password.
func TestPlaintextRegistriesAreUsedOnlyIfInsecureIsSet(t *testing.T) {
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	plain := serve(t, images.ServeHTTP)
	r := &imageRegistry{origin: plain, roots: func(c *Config) { c.Insecure = []string{"*"} }}
	r.push(t, "a:v1", artifact(t, tiny))
	at := Module{URL: "oci://" + r.host() + "/a:v1", Secret: secretFor(r.host(), "hunter2")}
	asked := plain.requests.Load()
	if _, err := running(t, nil).File(context.Background(), at); err == nil || plain.requests.Load() != asked || !strings.Contains(err.Error(), "WASM_INSECURE_REGISTRIES") {
		t.Errorf("error %v, %d requests", err, plain.requests.Load()-asked)
	}
	content(t, running(t, func(c *Config) { c.Insecure = []string{r.host()} }), at)
}

func TestEndlessRegistryResponseIsNotBuffered(t *testing.T) {
	var sent atomic.Int64
	endless := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		if r.URL.Path != "/elsewhere" {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		blank := bytes.Repeat([]byte(" "), 1<<20)
		for range 200 {
			n, err := w.Write(blank)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}
	o := serve(t, endless)
	m := running(t, func(c *Config) { c.Insecure = []string{"127.0.0.1"} })
	_, err := m.File(context.Background(), Module{URL: "oci://" + o.Listener.Addr().String() + "/endless:v1"})
	if !errors.Is(err, errTooLarge) {
		t.Errorf("the error: %v", err)
	}
	o.Close()
	if sent.Load() > 50<<20 {
		t.Errorf("%d bytes were read", sent.Load())
	}
}
