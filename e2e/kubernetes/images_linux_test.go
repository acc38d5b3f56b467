package kubernetes

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testimage"
)

// The images of the tests. The node agent's is named as in its manifest.
const (
	podImage   = "pilotfish.test/pod:1"
	agentImage = "docker.io/pilotfish/install-cni:latest"
	nextImage  = "docker.io/pilotfish/install-cni:next" // the same, under another name: an upgrade
	proxyImage = "docker.io/istio/proxyv2:1.28.0"       // the agent's in place of Istio's
)

// buildImages makes archives of all images.
func buildImages(t *testing.T, dir string) map[string]string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pod := []testimage.File{{Name: "podapp", Text: buildPodApp(t, dir), Mode: 0o755}, {Name: "tmp/", Mode: 0o777},
		{Name: "etc/passwd", Text: []byte("root:x:0:0::/:\n"), Mode: 0o644}}
	agent := agentFiles(t)
	archives := map[string][]byte{
		podImage:   testimage.Archive(t, podImage, []string{"/podapp"}, pod...),
		agentImage: testimage.Archive(t, agentImage, []string{"/usr/local/bin/pilotfish-cni-install"}, agent...),
		nextImage:  testimage.Archive(t, nextImage, []string{"/usr/local/bin/pilotfish-cni-install"}, agent...),
	}
	archives[proxyImage] = testimage.Archive(t, proxyImage, []string{"/usr/local/bin/pilot-agent"}, proxyFiles(t)...)
	paths := map[string]string{}
	for name, archive := range archives {
		paths[name] = filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_").Replace(name)+".tar")
		if err := os.WriteFile(paths[name], archive, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// proxyFiles is what packaging/images writes to the sidecar's image, without Envoy.
func proxyFiles(t *testing.T) []testimage.File {
	t.Helper()
	files := []testimage.File{{Name: "tmp/", Mode: 0o777}, {Name: "etc/passwd", Text: []byte("root:x:0:0::/:\nistio-proxy:x:1337:1337::/:\n"), Mode: 0o644}}
	return append(files, programs(t, map[string]string{"usr/local/bin/pilot-agent": "pilotfish-agent", "usr/local/bin/pilotfish-iptables": "pilotfish-iptables"})...)
}

// agentFiles is what packaging/images writes to the node agent's image.
func agentFiles(t *testing.T) []testimage.File {
	t.Helper()
	return programs(t, map[string]string{
		"opt/cni/bin/pilotfish-cni":           "pilotfish-cni",
		"opt/cni/bin/pilotfish-cni-tombstone": "pilotfish-cni-tombstone",
		"usr/local/bin/pilotfish-cni-install": "pilotfish-cni-install",
	})
}

// programs are binaries of this project by their place in an image.
func programs(t *testing.T, names map[string]string) []testimage.File {
	t.Helper()
	var files []testimage.File
	for path, name := range names {
		text, err := os.ReadFile(testenv.Bin(t, name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, testimage.File{Name: path, Text: text, Mode: 0o755})
	}
	return files
}

// buildPodApp builds what runs in pods, which is that of e2e/sandbox.
func buildPodApp(t *testing.T, dir string) []byte {
	t.Helper()
	program := filepath.Join(dir, "podapp")
	build := exec.Command("go", "build", "-mod=mod", "-trimpath", "-o", program, "./podapp")
	build.Dir = filepath.Join(testenv.Root(), "e2e", "sandbox")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building podapp: %v\n%s", err, out)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
