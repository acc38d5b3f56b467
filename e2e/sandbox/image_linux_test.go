package sandbox

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// importImage makes the one image of the tests, in which there is podapp and nothing else.
func (n *node) importImage(t *testing.T) {
	t.Helper()
	program := filepath.Join(n.dir, "podapp")
	build := exec.Command("go", "build", "-mod=mod", "-trimpath", "-o", program, "./podapp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building podapp: %v\n%s", err, out)
	}
	archive := filepath.Join(n.dir, "image.tar")
	if err := os.WriteFile(archive, imageArchive(t, program), 0o600); err != nil {
		t.Fatal(err)
	}
	load := exec.Command(filepath.Join(n.bin, "ctr"), "--address", filepath.Join(n.dir, "containerd.sock"), "--namespace", "k8s.io",
		"images", "import", "--snapshotter", "native", archive)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("importing the image: %v\n%s", err, out)
	}
}

// imageArchive is an image in the form of `docker save`.
func imageArchive(t *testing.T, program string) []byte {
	t.Helper()
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	layer := tarOf(t, file{"podapp", text, 0o755}, file{"tmp/", nil, 0o777}, file{"etc/passwd", []byte("root:x:0:0::/:\n"), 0o644})
	sum := sha256.Sum256(layer)
	config := marshal(t, map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/podapp"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	manifest := marshal(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"}}})
	return tarOf(t, file{"config.json", config, 0o644}, file{"layer.tar", layer, 0o644}, file{"manifest.json", manifest, 0o644})
}

type file struct {
	name string
	text []byte
	mode int64
}

func tarOf(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
