package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testimage"
)

// importImage creates the only image of the tests, which contains only podapp.
func (n *node) importImage(t *testing.T) {
	t.Helper()
	program := filepath.Join(n.dir, "podapp")
	build := exec.Command("go", "build", "-mod=mod", "-trimpath", "-o", program, "./podapp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building podapp: %v\n%s", err, out)
	}
	archive := filepath.Join(n.dir, "image.tar")
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	image := testimage.Archive(t, image, []string{"/podapp"}, testimage.File{Name: "podapp", Text: text, Mode: 0o755},
		testimage.File{Name: "tmp/", Mode: 0o777}, testimage.File{Name: "etc/passwd", Text: []byte("root:x:0:0::/:\n"), Mode: 0o644})
	if err := os.WriteFile(archive, image, 0o600); err != nil {
		t.Fatal(err)
	}
	n.importArchive(t, archive)
}

// importArchive imports the images of an archive, as `docker save` or OCI tools write it.
func (n *node) importArchive(t *testing.T, archive string) {
	t.Helper()
	load := exec.Command(filepath.Join(n.bin, "ctr"), "--address", filepath.Join(n.dir, "containerd.sock"), "--namespace", "k8s.io",
		"images", "import", "--snapshotter", "native", archive)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("importing the image: %v\n%s", err, out)
	}
}
