package api

import (
	"net/http"
	"strings"

	containers "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
)

// The credentials that the registry of every server requires, and the path of its image.
const (
	registryUser, registryPassword = "puller", "known-to-the-secret-alone"
	imagePath                      = "/private/answer:v1"
)

// serveImage serves a registry with one image, the module. It requires the password.
func serveImage(w http.ResponseWriter, r *http.Request) {
	if user, password, _ := r.BasicAuth(); user != registryUser || password != registryPassword {
		w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	layer := static.NewLayer(answeringModule(), "application/vnd.module.wasm.content.layer.v1+wasm")
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	content, kind, err := readImagePart(image, r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(content)
}

// readImagePart returns an image's configuration or layer by digest, or its manifest for any other digest.
func readImagePart(image containers.Image, digest string) (content []byte, kind string, err error) {
	manifest, err := image.Manifest()
	if err != nil {
		return nil, "", err
	}
	switch digest {
	case manifest.Config.Digest.String():
		content, err = image.RawConfigFile()
		return content, string(manifest.Config.MediaType), err
	case manifest.Layers[0].Digest.String():
		return answeringModule(), string(manifest.Layers[0].MediaType), nil
	}
	content, err = image.RawManifest()
	return content, string(manifest.MediaType), err
}
