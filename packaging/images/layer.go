package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layerContent is the content from which a layer is built.
type layerContent struct {
	subject string // for the image's history
	entries []entry
}

// fileTime is the modification time of all files. It does not depend on the release, so that releases share unchanged
// layers.
var fileTime = time.Unix(0, 0)

// build compresses the layer once, and returns it with its digests.
func (l layerContent) build() (v1.Layer, error) {
	var compressed bytes.Buffer
	zip := gzip.NewWriter(&compressed)
	w := tar.NewWriter(zip)
	for _, e := range addParents(l.entries) {
		if err := e.write(w); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(compressed.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// addParents adds the missing parent directories, which belong to root, and sorts the entries by path.
func addParents(entries []entry) []entry {
	known := map[string]bool{}
	for _, e := range entries {
		known[e.path] = true
	}
	all := slices.Clone(entries)
	for _, e := range entries {
		for dir := path.Dir(strings.TrimSuffix(e.path, "/")); dir != "."; dir = path.Dir(dir) {
			if !known[dir+"/"] {
				known[dir+"/"] = true
				all = append(all, entry{path: dir + "/", mode: 0o755})
			}
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return all
}

func (e entry) write(w *tar.Writer) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: e.path, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.text)), ModTime: fileTime}
	var content io.Reader = strings.NewReader(e.text)
	switch {
	case e.link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
	case strings.HasSuffix(e.path, "/"):
		header.Typeflag = tar.TypeDir
	case e.source != "":
		f, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		header.Size, content = info.Size(), f
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(w, content)
	return err
}
