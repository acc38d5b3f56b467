// Package testenv gives tests what they share: the pinned Envoys and the project's own binaries, built once.
package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// The Envoys that promises are tested with: the one that the project is built for, the oldest that works, and one
// between them. scripts/envoy.sh installs them.
const (
	EnvoyVersion    = "1.40.0"
	MidEnvoyVersion = "1.38.3"
	OldEnvoyVersion = "1.36.4"
)

// EnvoyVersions are all of them, the newest first.
func EnvoyVersions() []string { return []string{EnvoyVersion, MidEnvoyVersion, OldEnvoyVersion} }

// Root is the root folder of the checkout.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("testenv: the source file's place is unknown; build without -trimpath for tests")
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Envoy is the path of the pinned Envoy. A test that needs one fails where it is missing: nothing is skipped.
func Envoy(t testing.TB) string { return EnvoyOf(t, EnvoyVersion) }

// EnvoyOf is the path of one of the pinned Envoys.
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

// Bin is the path of one of the project's binaries (pilotfish, pilotfish-agent, pilotfish-cni). `make test` builds them
// beforehand and says where in PILOTFISH_TEST_BIN; a test that is run by hand builds them here, once a process.
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
