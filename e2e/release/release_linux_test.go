package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// version is a prerelease, whose packages have another notation.
const version = "1.2.3-rc.1"

// build builds a release from the programs under test into a new directory.
func build(t *testing.T) (dir string) {
	t.Helper()
	scripts := filepath.Join(testenv.Root(), "scripts")
	if out, err := exec.Command(filepath.Join(scripts, "libc.sh"), runtime.GOARCH).CombinedOutput(); err != nil {
		t.Skipf("no C library for the image: %v: %s", err, out)
	}
	programs := filepath.Join(t.TempDir(), runtime.GOARCH)
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pilotfish", "pilotfish-agent", "pilotfish-iptables", "pilotfish-cni", "pilotfish-cni-install", "pilotfish-cni-tombstone"} {
		text, err := os.ReadFile(testenv.Bin(t, name))
		if err != nil {
			t.Fatal(err)
		}
		testenv.Program(t, filepath.Join(programs, name), text)
	}
	dir = t.TempDir()
	c := exec.Command(filepath.Join(scripts, "release.sh"), filepath.Dir(programs), version, dir)
	c.Env = append(os.Environ(), "ENVOY_VERSION="+testenv.EnvoyVersion, "SOURCE_DATE_EPOCH=1700000000")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("building the release: %v\n%s", err, out)
	}
	return dir
}

func TestReleaseIsReproducibleAndRunsTheDemoAlone(t *testing.T) {
	dir := build(t)
	sums := readFile(t, filepath.Join(dir, "SHA256SUMS"))
	for _, part := range []string{".deb\n", ".rpm\n", "-linux-" + runtime.GOARCH + ".tar.gz\n", "proxyv2-" + version + ".oci.tar\n", "install-cni-" + version + ".oci.tar\n", ".spdx.json\n"} {
		if strings.Count(sums, part) != 1 {
			t.Errorf("SHA256SUMS has not one %s:\n%s", strings.TrimSpace(part), sums)
		}
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if again := readFile(t, filepath.Join(build(t), "SHA256SUMS")); again != sums {
		t.Errorf("the second build has other bytes:\n%s\n%s", sums, again)
	}
	checkSBOM(t, dir)
	runDemo(t, install(t, dir))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkSBOM checks that the SBOM names what is in the programs and images.
func checkSBOM(t *testing.T, dir string) {
	t.Helper()
	var document struct {
		Packages []struct{ Name, VersionInfo string }
	}
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(dir, "pilotfish-"+version+".spdx.json"))), &document); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, p := range document.Packages {
		versions[p.Name] = p.VersionInfo
	}
	for name, want := range map[string]string{"pilotfish": version, "pilotfish-agent": version, "envoy": testenv.EnvoyVersion, "stdlib": strings.TrimPrefix(runtime.Version(), "go"),
		"google.golang.org/grpc": "v", "libc6": "2.", "golang.org/x/crypto/x509roots/fallback": "v"} {
		if got := versions[name]; !strings.HasPrefix(got, want) {
			t.Errorf("the SBOM has %s %q, want %s", name, got, want)
		}
	}
}

// install unpacks the release's archive, installs the Envoy of the sidecar's image, and returns the directory of the programs.
func install(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	name := "pilotfish-" + version + "-linux-" + runtime.GOARCH
	if out, err := exec.Command("tar", "--extract", "--file", filepath.Join(dir, name+".tar.gz"), "--directory", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bin := filepath.Join(to, name)
	program := filepath.Join(to, "envoy")
	testenv.Program(t, program, findInImage(t, filepath.Join(dir, "pilotfish-proxyv2-"+version+".oci.tar"), "usr/local/bin/envoy"))
	c := exec.Command(filepath.Join(bin, "pilotfish"), "envoy", "install", program, "--output", filepath.Join(bin, "envoy"))
	c.Env = []string{"HOME=" + to, "PATH=" + bin}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("installing Envoy: %v: %s", err, out)
	}
	return bin
}

// findInImage returns a file of an image, whose layers are files of the archive that are compressed tar files themselves.
func findInImage(t *testing.T, archive, name string) []byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for blobs := tar.NewReader(f); ; {
		if _, err := blobs.Next(); err != nil {
			t.Fatalf("looking for %s in %s: %v", name, archive, err)
		}
		layer, err := gzip.NewReader(blobs)
		if err != nil {
			continue
		}
		for files := tar.NewReader(layer); ; {
			h, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Name == name {
				var text bytes.Buffer
				if _, err := io.Copy(&text, files); err != nil {
					t.Fatal(err)
				}
				return text.Bytes()
			}
		}
	}
}

// runDemo runs the checks of the example mesh. No other program is in the PATH than those of the release.
func runDemo(t *testing.T, bin string) {
	t.Helper()
	home, err := os.MkdirTemp("", "pf") // short, because socket paths have a maximum length
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	c := exec.Command(filepath.Join(bin, "pilotfish"), "demo", "--check", "-o", "json", "--runtime-dir", filepath.Join(home, "run"))
	c.Env = []string{"HOME=" + home, "PATH=" + bin, "TMPDIR=" + home}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("demo --check: %v\n%s%s", err, out, stderr.String())
	}
	var result struct {
		Checks []struct {
			Check string
			OK    bool
		}
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.Checks) < 10 {
		t.Fatalf("demo --check has %d checks (%v):\n%s", len(result.Checks), err, out)
	}
	for _, c := range result.Checks {
		if !c.OK {
			t.Errorf("the check %q failed:\n%s", c.Check, out)
		}
	}
}
