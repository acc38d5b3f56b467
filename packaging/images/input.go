package main

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// architectures are the architectures for which images are built, by their names in Go and in OCI images.
var architectures = []string{"amd64", "arm64"}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// programs are the project's programs in the images.
var programs = []string{"pilotfish-agent", "pilotfish-iptables", "pilotfish-cni", "pilotfish-cni-install", "pilotfish-cni-tombstone"}

// input is the verified content of the directory of one architecture.
type input struct {
	arch, dir    string
	envoyVersion string
	envoyHash    string // SHA-256
}

func (in *input) path(name string) string { return filepath.Join(in.dir, name) }

// readInput checks that dir contains the C library, and all programs for the architecture arch. If envoyVersion is
// empty, Envoy must be a pinned release.
func readInput(dir, arch, envoyVersion string) (*input, error) {
	in := &input{arch: arch, dir: dir, envoyVersion: envoyVersion}
	for _, program := range append([]string{"envoy"}, programs...) {
		if err := checkProgram(in.path(program), arch); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(in.path("libc")); err != nil {
		return nil, fmt.Errorf("finding the C library of Envoy: %w: fetch it with scripts/libc.sh", err)
	}
	var err error
	if in.envoyHash, err = hashFile(in.path("envoy")); err != nil || envoyVersion != "" {
		return in, err
	}
	version, pinnedArch := envoy.FindPinnedRelease(in.envoyHash)
	if version == "" || pinnedArch != arch {
		return nil, fmt.Errorf("%s has the SHA-256 hash %s, which is not the hash of a pinned Envoy release for %s: set --envoy-version to its version to use this program", in.path("envoy"), in.envoyHash, arch)
	}
	in.envoyVersion = version
	return in, nil
}

func checkProgram(path, arch string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if f.Machine != machines[arch] {
		return fmt.Errorf("%s is a program for %v, not for %s", path, f.Machine, arch)
	}
	return nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
