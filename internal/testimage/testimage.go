// Package testimage creates container images for tests.
package testimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"runtime"
	"testing"
)

// File is a file of an image, or a directory if its name ends with a slash.
type File struct {
	Name string
	Text []byte
	Mode int64
}

// Archive returns a container image with one layer, in the format of `docker save`.
func Archive(t testing.TB, name string, entrypoint []string, files ...File) []byte {
	t.Helper()
	layer := tarOf(t, files...)
	sum := sha256.Sum256(layer)
	config := marshal(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	manifest := marshal(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	return tarOf(t, File{"config.json", config, 0o644}, File{"layer.tar", layer, 0o644}, File{"manifest.json", manifest, 0o644})
}

func tarOf(t testing.TB, files ...File) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.Name, Mode: f.Mode, Size: int64(len(f.Text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.Text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
