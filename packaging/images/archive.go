package main

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// writeArchive writes an OCI archive: a tar file of an OCI image layout that contains the image of all architectures.
// containerd imports the image by the name reference. Other tools find it by tag.
func writeArchive(path string, index v1.ImageIndex, reference, tag string) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".layout-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	all := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{
		Annotations: map[string]string{"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag}}})
	if _, err := layout.Write(dir, all); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := packDir(f, dir); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// packDir writes the files of dir to target as a tar file, in the order of their names. It omits their times and
// owners.
func packDir(target io.Writer, dir string) error {
	w := tar.NewWriter(target)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return entry{path: name, mode: 0o644, source: path}.write(w)
	})
	if err != nil {
		return err
	}
	return w.Close()
}
