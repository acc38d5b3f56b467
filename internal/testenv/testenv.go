// Package testenv provides helpers for tests, the pinned Envoy versions, and the project's binaries.
package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// The Envoy versions that the tests use: the version that the project is built for, the oldest supported version, and
// one between them. scripts/envoy.sh installs them.
const (
	EnvoyVersion    = "1.40.0"
	MidEnvoyVersion = "1.38.3"
	OldEnvoyVersion = "1.36.4"
)

// EnvoyVersions returns all Envoy versions that the tests use, newest first.
func EnvoyVersions() []string { return []string{EnvoyVersion, MidEnvoyVersion, OldEnvoyVersion} }

// root is determined when the process starts in the package's directory, before a test changes the directory. With
// -trimpath the compiler does not record the path of the sources.
var root, errRoot = findRoot()

func findRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module github.com/pilotfish-mesh/pilotfish\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("neither %s nor a parent directory is the root of the repository", start)
		}
	}
}

// Root returns the root directory of the repository. The process must have been started in or below it.
func Root() string {
	if errRoot != nil {
		panic("testenv: " + errRoot.Error())
	}
	return root
}

// Envoy returns the path of the newest pinned Envoy. If it is not installed, the test fails.
func Envoy(t testing.TB) string { return EnvoyOf(t, EnvoyVersion) }

// EnvoyOf returns the path of one of the pinned Envoys. If it is not installed, the test fails.
func EnvoyOf(t testing.TB, version string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatalf("no cache directory for Envoy: %v", err)
	}
	path := filepath.Join(cache, "pilotfish", "envoy", version, "envoy")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("Envoy %s is not installed (%v): run `make envoy`", version, err)
	}
	return path
}

var (
	buildOnce sync.Once
	buildErr  error
)

// Bin returns the path of one of the project's binaries (pilotfish, pilotfish-agent, pilotfish-cni). `make test` builds
// them first and passes their directory in PILOTFISH_TEST_BIN. Without that variable, Bin builds them once per process.
func Bin(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv("PILOTFISH_TEST_BIN"); dir != "" {
		return filepath.Join(dir, name)
	}
	dir := filepath.Join(Root(), "bin")
	buildOnce.Do(func() {
		cmd := exec.Command("make", "-s", "build")
		cmd.Dir = Root()
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			buildErr = fmt.Errorf("make build: %w\n%s", err, out.String())
		}
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return filepath.Join(dir, name)
}
