package main

import (
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// imageKind is one of the project's images.
type imageKind struct {
	name       string // the name of Istio's image, so that Istio's charts and injector find the image
	title      string
	user       string
	entrypoint string
	list       func(*input) ([]layerContent, error)
}

var (
	sidecarImage = imageKind{"proxyv2", "pilotfish sidecar, gateway and init container", fmt.Sprintf("%d:%d", proxyUser, proxyUser), "/usr/local/bin/pilot-agent", listSidecarLayers}
	// The node agent runs as root, because it changes the node's files and the pods' namespaces.
	cniImage = imageKind{"install-cni", "pilotfish CNI plugin and node agent", "0:0", "/usr/local/bin/install-cni", listCNILayers}
)

// buildIndex builds the image for the architecture of each input.
func buildIndex(kind imageKind, inputs []*input, o options) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, in := range inputs {
		image, err := buildImage(kind, in, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", in.arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: in.arch}}})
	}
	return mutate.Annotations(index, kind.labels(o)).(v1.ImageIndex), nil
}

func (k imageKind) labels(o options) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    k.title,
		"org.opencontainers.image.version":  o.version,
		"org.opencontainers.image.revision": o.commit,
		"org.opencontainers.image.source":   "https://github.com/pilotfish-mesh/pilotfish",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}

func buildImage(kind imageKind, in *input, o options) (v1.Image, error) {
	contents, err := kind.list(in)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, content := range contents {
		layer, err := content.build()
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", content.subject, err)
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
			History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: content.subject}})
		if err != nil {
			return nil, err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", in.arch, v1.Time{Time: o.created}
	file.Config = v1.Config{User: kind.user, WorkingDir: "/", Env: []string{searchPath}, Entrypoint: []string{kind.entrypoint}, Labels: kind.labels(o)}
	return mutate.ConfigFile(image, file)
}
